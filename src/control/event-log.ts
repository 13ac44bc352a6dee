import { appendFileSync, existsSync, renameSync, statSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import type { LogEvent } from "../base/log.ts";

const FILE_BYTES_MAX = 16 * 2 ** 20;
const OLD_FILES = 3;

/**
 * A sink for the event log: JSON lines appended to `path` (0600), rotated to path.1 .. path.3. A full disk must not
 * end a run over its log, so a line that cannot be written is dropped; `onDropped` hears of it.
 */
export function eventFile(path: string, onDropped: (code: string) => void): (event: LogEvent) => void {
  let bytes = existsSync(path) ? statSync(path).size : 0;
  return (event) => {
    const line = `${JSON.stringify(event)}\n`;
    try {
      if (bytes + line.length > FILE_BYTES_MAX) {
        rotate(path);
        bytes = 0;
      }
      appendFileSync(path, line, { mode: 0o600 });
      bytes += Buffer.byteLength(line);
    } catch (error) {
      onDropped(errnoOf(error) ?? "unknown");
    }
  };
}

function rotate(path: string): void {
  for (let n = OLD_FILES; n >= 1; n -= 1) {
    const from = n === 1 ? path : `${path}.${n - 1}`;
    if (existsSync(from)) renameSync(from, `${path}.${n}`);
  }
}
