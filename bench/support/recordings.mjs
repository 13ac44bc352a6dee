// The real runs that are recorded in bench/recordings (by `bench eta --record`), for the ETA to be tried on.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync } from "node:zlib";

export const RECORDINGS = fileURLToPath(new URL("../recordings", import.meta.url));
const ENDING = ".jsonl.gz";

export function readRecordings() {
  const files = existsSync(RECORDINGS) ? readdirSync(RECORDINGS) : [];
  return files
    .filter((file) => file.endsWith(ENDING))
    .map((file) => {
      const text = gunzipSync(readFileSync(join(RECORDINGS, file))).toString("utf8");
      const [head, ...events] = text
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line));
      return { name: file.slice(0, -ENDING.length), recording: { ...head, events } };
    });
}
