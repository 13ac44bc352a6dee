import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

/** The page: one script, one style sheet, no third party. `npm run build` puts it into dist/web. */
export default defineConfig({
  root: fileURLToPath(new URL(".", import.meta.url)),
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: fileURLToPath(new URL("../dist/web", import.meta.url)),
    emptyOutDir: true,
    target: "es2022",
    // Everything is one chunk; the polyfill would be an inline script, which the page's policy refuses.
    modulePreload: false,
    assetsInlineLimit: 0,
  },
});
