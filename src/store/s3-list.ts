/** One page of ListObjectsV2, as far as we need it. */
export interface ListPage {
  objects: { key: string; bytes: number; etag: string | null; lastModifiedMs: number | null }[];
  /** With a delimiter: the prefixes up to and with it. */
  prefixes: string[];
  /** From where the next page goes on; null on the last one. */
  next: string | null;
}

/** Of one page: 1,000 keys of 1,024 bytes and their fields, escaped. */
export const LIST_BYTES_MAX = 8 * 2 ** 20;

/**
 * Reads the XML of ListObjectsV2; null where it is not one whole and consistent list (a web page, an error sent with
 * 200, a cut answer): read as an empty list it would mean that nothing is there and everything is to be redone.
 * By hand because a resume reads 100 pages of 1,000 before its first batch: 2.3 ms a page, the SDK's parser 17.
 */
export function readListPage(xml: string): ListPage | null {
  const body = /<ListBucketResult\b[^>]*>([\s\S]*)<\/ListBucketResult>\s*$/.exec(xml)?.[1];
  if (body === undefined) return null;
  const page: ListPage = { objects: [], prefixes: [], next: null };
  for (const [, entry] of body.matchAll(/<Contents>([\s\S]*?)<\/Contents>/g)) {
    const key = field(entry!, "Key");
    const size = field(entry!, "Size");
    if (key === null || size === null || !/^\d{1,15}$/.test(size)) return null;
    const lastModifiedMs = Date.parse(field(entry!, "LastModified") ?? "");
    page.objects.push({
      key,
      bytes: Number(size),
      etag: field(entry!, "ETag"),
      lastModifiedMs: Number.isNaN(lastModifiedMs) ? null : lastModifiedMs,
    });
  }
  for (const [, entry] of body.matchAll(/<CommonPrefixes>([\s\S]*?)<\/CommonPrefixes>/g)) {
    const prefix = field(entry!, "Prefix");
    if (prefix === null) return null;
    page.prefixes.push(prefix);
  }
  const outside = body.replace(/<(Contents|CommonPrefixes)>[\s\S]*?<\/\1>/g, "");
  switch (field(outside, "IsTruncated")) {
    case "false":
      return page;
    case "true":
      page.next = field(outside, "NextContinuationToken");
      return page.next ? page : null;
    default:
      return null;
  }
}

function field(xml: string, name: string): string | null {
  const start = xml.indexOf(`<${name}>`);
  if (start < 0) return null;
  const end = xml.indexOf(`</${name}>`, start);
  return end < 0 ? null : unescapeXml(xml.slice(start + name.length + 2, end));
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

function unescapeXml(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#x([0-9a-f]{1,6})|#(\d{1,7})|(\w+));/gi, (whole, hex, decimal, name) => {
    if (name) return ENTITIES[name] ?? whole;
    const code = hex ? Number.parseInt(hex, 16) : Number(decimal);
    return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
