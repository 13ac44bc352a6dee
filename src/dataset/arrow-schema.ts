import { cutFile } from "./file-window.ts";
import type { FlatTable } from "./flatbuffer.ts";
import type { IntType } from "./integers.ts";
import { badDataset, IDS, MASK, missingColumn } from "./rows.ts";

/* Where our two columns stand in an Arrow schema. Field numbers: Schema.fbs. */

const METADATA_V5 = 4;

/** A list column: where its parts stand in a record batch's flat lists of nodes and buffers. */
export interface ListColumn {
  name: string;
  offsetBits: 32 | 64;
  item: IntType;
  /** Nodes: the list's, then its items'. */
  node: number;
  /** Buffers: validity, offsets, item validity, items. */
  buffer: number;
}

export interface Columns {
  ids: ListColumn;
  mask: ListColumn | null;
}

/** Finds our columns and counts the nodes and buffers of those before them (Arrow lists all in schema order). */
export function findColumns(schema: FlatTable, version: number, path: string): Columns {
  return decode(path, 0, () => {
    if (schema.int16(0) !== 0) {
      throw badDataset(path, "expected little-endian Arrow buffers, found big-endian ones");
    }
    const fields = schema.tables(1);
    const place = { node: 0, buffer: 0 };
    let ids: ListColumn | null = null;
    let mask: ListColumn | null = null;
    for (const field of fields) {
      const name = field.string(0);
      if (name === IDS) ids = listColumn(field, name, place, path);
      if (name === MASK) mask = listColumn(field, name, place, path);
      const size = sizeOf(field, version, path);
      place.node += size.nodes;
      place.buffer += size.buffers;
    }
    if (!ids)
      throw missingColumn(
        path,
        fields.map((field) => field.string(0)),
      );
    return { ids, mask };
  });
}

const TYPE = { null: 1, int: 2, bool: 6, list: 12, largeList: 21 };

function listColumn(
  field: FlatTable,
  name: string,
  place: { node: number; buffer: number },
  path: string,
): ListColumn {
  const kind = field.uint8(2);
  const [items] = field.tables(5);
  const item = items ? intType(items, name) : null;
  if ((kind !== TYPE.list && kind !== TYPE.largeList) || !item || items?.table(4)) {
    throw badDataset(
      path,
      `expected ${name} to be a list of integers, found Arrow type ${describeType(field)}`,
      {
        hint: 'cast the column with datasets: Sequence(Value("int32"))',
      },
    );
  }
  return { name, offsetBits: kind === TYPE.list ? 32 : 64, item, ...place };
}

function intType(field: FlatTable, column: string): IntType | null {
  const kind = field.uint8(2);
  if (kind === TYPE.bool && column === MASK) return { bits: 1, signed: false };
  const int = field.table(3);
  if (kind !== TYPE.int || !int) return null;
  const bits = int.int32(0);
  if (bits !== 8 && bits !== 16 && bits !== 32 && bits !== 64) return null;
  return { bits, signed: int.bool(1) };
}

const TYPE_NAMES = [
  ...["none", "null", "int", "float", "binary", "utf8", "bool", "decimal", "date", "time", "timestamp"],
  ...["interval", "list", "struct", "union", "fixed_size_binary", "fixed_size_list", "map", "duration"],
  ...["large_binary", "large_utf8", "large_list", "run_end_encoded", "binary_view", "utf8_view"],
  ...["list_view", "large_list_view"],
];

function describeType(field: FlatTable): string {
  const name = TYPE_NAMES[field.uint8(2)] ?? `number ${field.uint8(2)}`;
  const children = field.tables(5);
  return children.length > 0 ? `${name}<${children.map(describeType).join(", ")}>` : name;
}

/** Nodes and buffers of a field with its children. Source: Columnar.rst, "Buffer Listing for Each Layout". */
function sizeOf(field: FlatTable, version: number, path: string): { nodes: number; buffers: number } {
  const total = { nodes: 1, buffers: buffersOf(field, version, path) };
  // Of a dictionary-encoded field the batch holds only the indices.
  if (field.table(4)) return { nodes: 1, buffers: 2 };
  for (const child of field.tables(5)) {
    const size = sizeOf(child, version, path);
    total.nodes += size.nodes;
    total.buffers += size.buffers;
  }
  return total;
}

function buffersOf(field: FlatTable, version: number, path: string): number {
  const name = TYPE_NAMES[field.uint8(2)];
  switch (name) {
    case "null":
    case "run_end_encoded":
      return 0;
    case "struct":
    case "fixed_size_list":
      return 1;
    case "utf8":
    case "binary":
    case "large_utf8":
    case "large_binary":
    case "list_view":
    case "large_list_view":
      return 3;
    case "union": {
      const isDense = field.table(3)?.int16(0) === 1;
      return (isDense ? 2 : 1) + (version < METADATA_V5 ? 1 : 0);
    }
    case "none":
    case "utf8_view":
    case "binary_view":
    case undefined:
      throw badDataset(
        path,
        `the column ${field.string(0)} has Arrow type ${describeType(field)}, which is not supported`,
        {
          hint: "keep only the columns input_ids and loss_mask: dataset.select_columns([...])",
        },
      );
    default:
      return 2;
  }
}

/** Runs a decoder over hostile bytes; an offset that leads outside means the file is damaged. */
export function decode<T>(path: string, at: number, decoder: () => T): T {
  try {
    return decoder();
  } catch (cause) {
    if (cause instanceof RangeError) throw cutFile(path, `is damaged: bad metadata at byte ${at}`, cause);
    throw cause;
  }
}
