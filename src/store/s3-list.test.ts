import { expect, it } from "vitest";
import { readListPage } from "./s3-list.ts";

const list = (inside: string) =>
  `<?xml version="1.0"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">${inside}</ListBucketResult>`;
const entry = (key: string, size = "7") =>
  `<Contents><Key>${key}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&#34;ab&quot;</ETag><Size>${size}</Size></Contents>`;

it("a page is its objects, its prefixes and where the next one begins", () => {
  const inside = `<Name>b</Name><IsTruncated>true</IsTruncated>${entry("a&amp;b &lt;&#x263a;&gt;")}${entry("c", "0")}
    <CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes><NextContinuationToken>t/+=</NextContinuationToken>`;
  expect(readListPage(list(inside))).toEqual({
    objects: [
      { key: "a&b <☺>", bytes: 7, etag: '"ab"', lastModifiedMs: Date.UTC(2026, 0, 2, 3, 4, 5) },
      { key: "c", bytes: 0, etag: '"ab"', lastModifiedMs: Date.UTC(2026, 0, 2, 3, 4, 5) },
    ],
    prefixes: ["d/"],
    next: "t/+=",
  });
});

it("an empty list is an empty list, and only where it says that it is whole", () => {
  expect(readListPage(list("<IsTruncated>false</IsTruncated>"))).toEqual({
    objects: [],
    prefixes: [],
    next: null,
  });
});

it("a key cannot pose as the list's own fields", () => {
  const key = "&lt;IsTruncated&gt;true&lt;/IsTruncated&gt;";
  const page = readListPage(list(`${entry(key)}<IsTruncated>false</IsTruncated>`));
  expect(page).toMatchObject({ objects: [{ key: "<IsTruncated>true</IsTruncated>" }], next: null });
});

it.each([
  ["a web page", "<!doctype html><html></html>"],
  ["nothing", ""],
  ["an error", "<Error><Code>InternalError</Code></Error>"],
  ["a list without an end", list(`${entry("a")}<IsTruncated>false</IsTruncated>`).slice(0, -5)],
  ["a list that does not say whether it goes on", list(entry("a"))],
  ["a list that goes on from nowhere", list("<IsTruncated>true</IsTruncated>")],
  ["an object without a size", list("<IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents>")],
  ["a size that is no number", list(`<IsTruncated>false</IsTruncated>${entry("a", "-1")}`)],
])("%s is no list", (_, xml) => {
  expect(readListPage(xml)).toBeNull();
});
