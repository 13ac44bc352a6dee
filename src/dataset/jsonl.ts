import { FileWindow } from "./file-window.ts";
import { JsonRowParser } from "./json-row.ts";
import { readLines } from "./lines.ts";
import { badDataset, MASK, missingColumn, type RowBatch, RowCollector, type RowSource } from "./rows.ts";

/** One JSON object a line with `input_ids` and, in all rows or in none, `loss_mask`; other keys are ignored. */
export async function openJsonl(path: string): Promise<RowSource> {
  const window = await FileWindow.open(path);
  const file = window.file;
  await window.close();
  return { kind: "jsonl", path, files: [file], batches: (signal) => readRows(path, signal) };
}

async function* readRows(path: string, signal?: AbortSignal): AsyncGenerator<RowBatch> {
  const collector = new RowCollector(path, 0);
  const parser = new JsonRowParser();
  let hasMask: boolean | null = null;
  for await (const lines of readLines(path, { signal })) {
    for (let i = 0; i < lines.starts.length; i += 1) {
      const row = parser.parse(lines.bytes, lines.starts[i]!, lines.ends[i]!);
      const where = `line ${lines.numbers[i]} (row ${collector.row})`;
      if ("fault" in row) throw badLine(path, where, row.fault, row.columns);
      hasMask ??= row.mask !== null;
      if (hasMask !== (row.mask !== null)) {
        throw badDataset(
          path,
          `${where}: expected ${MASK} in all rows or in none, ${hasMask ? "it is missing here" : "the first row has none"}`,
        );
      }
      const lengths = Int32Array.of(row.ids.length);
      const mask = row.mask ? { values: row.mask, lengths: Int32Array.of(row.mask.length) } : null;
      collector.add(row.ids, lengths, mask);
      if (collector.full) yield collector.take();
    }
  }
  if (!collector.isEmpty) yield collector.take();
}

function badLine(path: string, where: string, fault: string, columns?: string[]) {
  if (columns) return missingColumn(`${path}, ${where}`, columns);
  const isList = where.startsWith("line 1 ") && fault.includes("found a list");
  return badDataset(path, `${where}: ${fault}`, {
    hint: isList
      ? "a file that is one list can be split into lines by jq -c '.[]'"
      : `mend or drop that line: sed -n '${/\d+/.exec(where)?.[0]}p' FILE shows it`,
  });
}
