// Bundles the programs and threads of dist/ with the libraries they load, into dist/bundle/: a short run then reads 115
// files and not 385, which is a quarter of its CPU time. tsc's tree stays beside it; only the entries become one line
// each, which loads its bundle.
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";

/** Every file under src/ that a process or a thread is started with. */
const ENTRIES = [
  "cli",
  "control/keeper",
  "dataset/tokenize-worker",
  "engine/onnx/child",
  "engine/onnx/worker",
  "engine/vllm/child",
  "engine/vllm/copy-worker",
  "monitor/monitor-worker",
  "spool/files-worker",
  "spool/upload-worker",
];
/** Native code finds its binaries by its own path; the SDK loads most of itself late, or never. */
const EXTERNAL = [/^onnxruntime-node/, /^tokenizers/, /^@node-rs\//, /^aws-crt/, /^@aws-sdk\//];

export async function bundle(root) {
  const { rolldown } = await import("rolldown");
  const source = join(root, "src");
  const output = join(root, "dist/bundle");
  const build = await rolldown({
    input: Object.fromEntries(ENTRIES.map((entry) => [flat(entry), join(source, `${entry}.ts`)])),
    platform: "node",
    external: EXTERNAL,
    plugins: [keepPlaces(source)],
  });
  rmSync(output, { recursive: true, force: true });
  const written = await build.write({
    dir: output,
    format: "esm",
    entryFileNames: "[name].js",
    chunkFileNames: "[name]-[hash].js",
  });
  await build.close();
  writeFileSync(join(output, "THIRD-PARTY-LICENSES.txt"), licencesOf(written.output));
  for (const entry of ENTRIES)
    loadBundleFrom(join(root, "dist", `${entry}.js`), join(output, `${flat(entry)}.js`));
}

function flat(entry) {
  return entry.replaceAll("/", "-");
}

/** A module finds its neighbours (a thread's entry, the page, python/) from where tsc puts it, bundled or not. */
function keepPlaces(source) {
  return {
    name: "keep-places",
    transform(code, id) {
      if (!id.startsWith(source + sep) || !code.includes("import.meta.url")) return null;
      const place = `../${relative(source, id).replaceAll(sep, "/").replace(/\.ts$/, ".js")}`;
      return code.replaceAll("import.meta.url", `new URL(${JSON.stringify(place)}, import.meta.url).href`);
    },
  };
}

function loadBundleFrom(entry, bundled) {
  const path = relative(dirname(entry), bundled).replaceAll(sep, "/");
  const isProgram = readFileSync(entry, "utf8").startsWith("#!");
  const specifier = path.startsWith(".") ? path : `./${path}`;
  writeFileSync(entry, `${isProgram ? "#!/usr/bin/env node\n" : ""}import "${specifier}";\n`);
  // tsc's own would show the lines of another text.
  rmSync(`${entry}.map`, { force: true });
}

/** The licence of every package whose code is in a bundle, as its authors ask of copies. */
function licencesOf(chunks) {
  const packages = new Map();
  for (const module of chunks.flatMap(({ moduleIds }) => moduleIds ?? [])) {
    const match = /^(.*[\\/]node_modules[\\/]((?:@[^\\/]+[\\/])?[^\\/]+))[\\/]/.exec(module);
    if (match) packages.set(match[2].replaceAll("\\", "/"), match[1]);
  }
  return [...packages]
    .sort()
    .map(([name, directory]) => {
      const { version, license } = JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));
      const file = readdirSync(directory).find((entry) => /^licen[cs]e/i.test(entry));
      const text = file ? readFileSync(join(directory, file), "utf8").trim() : `Licence: ${license}`;
      return `${name} ${version}\n\n${text}\n`;
    })
    .join(`\n${"-".repeat(80)}\n\n`);
}
