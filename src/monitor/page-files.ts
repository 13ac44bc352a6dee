import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { extname, join } from "node:path";
import { gzipSync } from "node:zlib";

/** One file of the page, held in memory in both forms: the whole page is smaller than one photograph. */
export interface PageFile {
  contentType: string;
  /** A name that changes with the bytes may be kept for ever; `/` must be asked for again. */
  cacheControl: string;
  etag: string;
  plain: Buffer;
  gzip: Buffer;
}

const CONTENT_TYPES: Record<string, string> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};

/**
 * Every file of the built page by its URL path. Requests are looked up in this map and nowhere else, so no path
 * a client can write reaches the disk. A missing directory (the page was not built) gives an empty map.
 */
export function readPageFiles(directory: string): Map<string, PageFile> {
  const files = new Map<string, PageFile>();
  for (const name of namesIn(directory)) {
    const contentType = CONTENT_TYPES[extname(name)];
    if (!contentType) continue;
    const plain = readFileSync(join(directory, name));
    const file: PageFile = {
      contentType,
      cacheControl: name.startsWith("assets/") ? "public, max-age=31536000, immutable" : "no-cache",
      etag: `"${createHash("sha256").update(plain).digest("base64url").slice(0, 22)}"`,
      plain,
      gzip: gzipSync(plain, { level: 9 }),
    };
    files.set(name === "index.html" ? "/" : `/${name}`, file);
  }
  return files;
}

function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory, { recursive: true, encoding: "utf8" });
  } catch {
    return [];
  }
}
