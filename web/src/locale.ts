/**
 * Chromium without a locale (a container, LANG=C) calls its language "en-US@posix", which its own Intl refuses:
 * uPlot asks for it while it loads, and the whole page would stay empty. Imported before everything else.
 */
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}

export {};
