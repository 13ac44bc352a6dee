/** What Python's str.isspace() holds; JavaScript's \s differs in U+001C to U+001F, U+0085 and U+FEFF. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it is about
const SPACE = /[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;

/** Python's str.lstrip: spaces, or any of `chars`, off the start. */
export function stripStart(text: string, chars?: string): string {
  let start = 0;
  while (start < text.length && isStripped(text[start]!, chars)) start += 1;
  return text.slice(start);
}

/** Python's str.rstrip. */
export function stripEnd(text: string, chars?: string): string {
  let end = text.length;
  while (end > 0 && isStripped(text[end - 1]!, chars)) end -= 1;
  return text.slice(0, end);
}

/** Python's str.strip. */
export function strip(text: string, chars?: string): string {
  return stripEnd(stripStart(text, chars), chars);
}

function isStripped(char: string, chars: string | undefined): boolean {
  return chars === undefined ? SPACE.test(char) : chars.includes(char);
}
