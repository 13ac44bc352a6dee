import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** A file of the installed package: "demo/tiny-qwen3". */
export function packagePath(name: string): string {
  return fileURLToPath(new URL(`../../${name}`, import.meta.url));
}

export function appVersion(): string {
  return (JSON.parse(readFileSync(packagePath("package.json"), "utf8")) as { version: string }).version;
}
