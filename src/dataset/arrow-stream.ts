import { type Columns, decode, findColumns, type ListColumn } from "./arrow-schema.ts";
import { cutFile, type FileWindow } from "./file-window.ts";
import { FlatTable } from "./flatbuffer.ts";
import { toInt32 } from "./integers.ts";
import { badDataset, type RowBatch, type RowCollector, rowAt } from "./rows.ts";

/*
 * Arrow's IPC stream: a schema message, then record batches, then an end mark. Each message is
 * 0xFFFFFFFF, int32 length, FlatBuffers metadata, body. Sources: Arrow columnar format, "IPC Streaming Format";
 * Message.fbs and Schema.fbs for the field numbers.
 *
 * We read it ourselves because a general reader loads a batch whole (a batch may be the whole dataset)
 * and spends about a millisecond on each of a million one-row batches.
 */

const CONTINUATION = 0xffffffff;
const SCHEMA_MESSAGE = 1;
const RECORD_BATCH_MESSAGE = 3;

/** Metadata is a schema or a list of buffers: even 10,000 columns stay far below this. */
const METADATA_BYTES_MAX = 64 * 1024 * 1024;
/** Of a large record batch, at most so many rows' offsets and so many tokens are held at once. */
const SLICE_ROWS = 16 * 1024;
const SLICE_TOKENS = 512 * 1024;

/** Appends the rows of one stream to `collector`, yielding whenever it is full. */
export async function* readArrowStream(
  window: FileWindow,
  collector: RowCollector,
  signal?: AbortSignal,
): AsyncGenerator<RowBatch> {
  let columns: Columns | null = null;
  for (let at = 0; ; ) {
    signal?.throwIfAborted();
    const message = await readMessage(window, at);
    if (message === null) break;
    const { kind, header, bodyByte, bodyBytes, version } = message;
    if (kind === SCHEMA_MESSAGE) {
      columns = findColumns(header, version, window.path);
    } else if (kind === RECORD_BATCH_MESSAGE) {
      if (!columns) throw cutFile(window.path, "expected a schema before the first record batch");
      if (bodyByte + bodyBytes > window.fileBytes) {
        throw cutFile(
          window.path,
          `was cut: the record batch at row ${collector.row} needs ${bodyByte + bodyBytes} bytes, the file has ${window.fileBytes}`,
        );
      }
      const batch = describeBatch(header, columns, { bodyByte, bodyBytes }, window.path);
      yield* readBatch(window, batch, collector, signal);
    }
    at = bodyByte + bodyBytes;
  }
  if (!columns) throw cutFile(window.path, "holds no schema");
}

/** The columns of the stream that begins `window`'s file, or what is wrong with it. Reads only its first message. */
export async function readArrowSchema(window: FileWindow): Promise<{ hasMask: boolean }> {
  const message = await readMessage(window, 0);
  if (message?.kind !== SCHEMA_MESSAGE) throw cutFile(window.path, "holds no schema");
  return { hasMask: findColumns(message.header, message.version, window.path).mask !== null };
}

interface Message {
  kind: number;
  version: number;
  header: FlatTable;
  bodyByte: number;
  bodyBytes: number;
}

/** The message at byte `at`; null at the end mark. */
async function readMessage(window: FileWindow, at: number): Promise<Message | null> {
  const { path, fileBytes } = window;
  // A writer that was closed left an end mark; without one, rows may be missing that nobody would notice.
  if (at + 8 > fileBytes)
    throw cutFile(path, `was cut: the file ends at byte ${fileBytes} without the stream's end mark`);
  const prefix = window.peek(at, 8) ?? (await window.read(at, 8));
  const view = new DataView(prefix.buffer, prefix.byteOffset, 8);
  if (view.getUint32(0, true) !== CONTINUATION) throw notAStream(path, prefix, at);
  const metadataBytes = view.getInt32(4, true);
  if (metadataBytes === 0) return null;
  if (metadataBytes < 0 || metadataBytes > METADATA_BYTES_MAX) {
    throw cutFile(path, `is damaged: a message at byte ${at} claims ${metadataBytes} bytes of metadata`);
  }
  if (at + 8 + metadataBytes > fileBytes)
    throw cutFile(path, `was cut: the file ends inside the message at byte ${at}`);
  const metadata = window.peek(at + 8, metadataBytes) ?? (await window.read(at + 8, metadataBytes));
  return decode(path, at, () => {
    const message = FlatTable.root(metadata);
    const header = message.table(2);
    const bodyBytes = message.int64(3);
    if (!header || bodyBytes < 0) throw new RangeError("no header");
    return {
      kind: message.uint8(1),
      version: message.int16(0),
      header,
      bodyByte: at + 8 + metadataBytes,
      bodyBytes,
    };
  });
}

/** One list column of one record batch, in bytes of the file. */
interface ListData {
  column: ListColumn;
  rows: number;
  items: number;
  offsetsByte: number;
  offsetsBytes: number;
  itemsByte: number;
  itemsBytes: number;
}

interface BatchData {
  rows: number;
  ids: ListData;
  mask: ListData | null;
}

function describeBatch(
  header: FlatTable,
  columns: Columns,
  body: { bodyByte: number; bodyBytes: number },
  path: string,
): BatchData {
  return decode(path, body.bodyByte, () => {
    const compression = header.table(3);
    if (compression) {
      const codec = compression.uint8(0) === 0 ? "LZ4" : "Zstandard";
      throw badDataset(path, `its Arrow buffers are compressed (${codec}), which is not supported`, {
        hint: "save it again uncompressed: datasets.load_from_disk(OLD).save_to_disk(NEW)",
      });
    }
    const rows = header.int64(0);
    const nodes = header.int64s(1, 2);
    const buffers = header.int64s(2, 2);
    const list = (column: ListColumn): ListData => {
      const length = nodes[2 * column.node];
      const nulls = nodes[2 * column.node + 1];
      const items = nodes[2 * column.node + 2];
      const itemNulls = nodes[2 * column.node + 3];
      const [offsetsAt, offsetsBytes] = [
        buffers[2 * column.buffer + 2] ?? -1,
        buffers[2 * column.buffer + 3] ?? -1,
      ];
      const [itemsAt, itemsBytes] = [
        buffers[2 * column.buffer + 6] ?? -1,
        buffers[2 * column.buffer + 7] ?? -1,
      ];
      if (length !== rows || items === undefined || items < 0)
        throw new RangeError(`${column.name} has another length`);
      for (const [start, bytes] of [
        [offsetsAt, offsetsBytes],
        [itemsAt, itemsBytes],
      ] as const) {
        if (start < 0 || bytes < 0 || start + bytes > body.bodyBytes)
          throw new RangeError("a buffer outside the body");
      }
      if (nulls !== 0 || itemNulls !== 0) {
        throw badDataset(path, `the column ${column.name} holds null values, which are no token ids`, {
          hint: "filter such rows out: dataset.filter(lambda row: row['input_ids'] is not None)",
        });
      }
      return {
        column,
        rows,
        items,
        offsetsByte: body.bodyByte + offsetsAt,
        offsetsBytes,
        itemsByte: body.bodyByte + itemsAt,
        itemsBytes,
      };
    };
    return { rows, ids: list(columns.ids), mask: columns.mask ? list(columns.mask) : null };
  });
}

async function* readBatch(
  window: FileWindow,
  batch: BatchData,
  collector: RowCollector,
  signal?: AbortSignal,
): AsyncGenerator<RowBatch> {
  for (let row = 0; row < batch.rows; ) {
    signal?.throwIfAborted();
    const rows = Math.min(SLICE_ROWS, batch.rows - row);
    const idsStarts = await readOffsets(window, batch.ids, row, rows, collector.row);
    const maskStarts = batch.mask ? await readOffsets(window, batch.mask, row, rows, collector.row) : null;
    // Cut the slice further where its rows are long.
    let taken = rows;
    while (taken > 1 && idsStarts[taken]! - idsStarts[0]! > SLICE_TOKENS) taken = Math.ceil(taken / 2);
    const idsPlace = placeItems(batch.ids, idsStarts, taken, window.path, collector.row);
    const maskPlace =
      batch.mask && maskStarts ? placeItems(batch.mask, maskStarts, taken, window.path, collector.row) : null;
    // Small batches are decoded where they lie in the window; any read may move that, so both columns or neither.
    let idsRaw = window.peek(idsPlace.byte, idsPlace.bytes);
    let maskRaw = maskPlace ? window.peek(maskPlace.byte, maskPlace.bytes) : null;
    if (!isUsable(idsRaw) || (maskPlace && !isUsable(maskRaw))) {
      idsRaw = await window.readNew(idsPlace.byte, idsPlace.bytes);
      maskRaw = maskPlace ? await window.readNew(maskPlace.byte, maskPlace.bytes) : null;
    }
    const ids = decodeItems(idsRaw, idsPlace, window.path, collector.row);
    const mask = maskPlace && maskRaw ? decodeItems(maskRaw, maskPlace, window.path, collector.row) : null;
    collector.add(
      ids,
      idsPlace.lengths,
      mask && maskPlace ? { values: mask, lengths: maskPlace.lengths } : null,
    );
    if (collector.full) yield collector.take();
    row += taken;
  }
}

/** [rows + 1] positions in the items, checked: ascending and inside. */
async function readOffsets(
  window: FileWindow,
  list: ListData,
  row: number,
  rows: number,
  datasetRow: number,
): Promise<Float64Array> {
  const width = list.column.offsetBits / 8;
  const start = row * width;
  const bytes = (rows + 1) * width;
  if (start + bytes > list.offsetsBytes) {
    throw cutFile(
      window.path,
      `is damaged: ${list.column.name} of row ${datasetRow} lies outside its buffer`,
    );
  }
  const raw =
    window.peek(list.offsetsByte + start, bytes) ?? (await window.read(list.offsetsByte + start, bytes));
  const view = new DataView(raw.buffer, raw.byteOffset, bytes);
  const starts = new Float64Array(rows + 1);
  for (let i = 0, previous = 0; i <= rows; i += 1) {
    const value =
      width === 4
        ? view.getInt32(4 * i, true)
        : view.getInt32(8 * i + 4, true) * 2 ** 32 + view.getUint32(8 * i, true);
    if (value < previous || value > list.items) {
      throw cutFile(
        window.path,
        `is damaged: ${list.column.name} of row ${datasetRow + Math.max(0, i - 1)} has the offset ${value}`,
      );
    }
    starts[i] = value;
    previous = value;
  }
  return starts;
}

/** Some rows' items, in bytes of the file. */
interface ItemsPlace {
  column: ListColumn;
  byte: number;
  bytes: number;
  /** Items before the first wanted one: bits are addressed by whole bytes. */
  skip: number;
  count: number;
  lengths: Int32Array;
}

function placeItems(
  list: ListData,
  starts: Float64Array,
  rows: number,
  path: string,
  datasetRow: number,
): ItemsPlace {
  const { bits } = list.column.item;
  const first = starts[0]!;
  const count = starts[rows]! - first;
  const lengths = new Int32Array(rows);
  for (let i = 0; i < rows; i += 1) lengths[i] = starts[i + 1]! - starts[i]!;
  const firstByte = Math.floor((first * bits) / 8);
  const bytes = Math.ceil(((first + count) * bits) / 8) - firstByte;
  if (firstByte + bytes > list.itemsBytes) {
    throw cutFile(path, `is damaged: ${list.column.name} of row ${datasetRow} lies outside its buffer`);
  }
  const skip = bits === 1 ? first - 8 * firstByte : 0;
  return { column: list.column, byte: list.itemsByte + firstByte, bytes, skip, count, lengths };
}

/** Typed arrays want their values aligned; Arrow aligns them in the file, and mostly that holds in the window too. */
function isUsable(bytes: Uint8Array | null): bytes is Uint8Array {
  return bytes !== null && bytes.byteOffset % 8 === 0;
}

function decodeItems(raw: Uint8Array, place: ItemsPlace, path: string, datasetRow: number): Int32Array {
  const { column, skip, count, lengths } = place;
  const { values, misfit } = toInt32(raw, column.item, skip + count);
  if (misfit >= 0) {
    throw badDataset(
      path,
      `row ${datasetRow + rowAt(lengths, misfit)}: ${column.name} holds a value that is no int32`,
    );
  }
  return skip > 0 ? values.subarray(skip) : values;
}

function notAStream(path: string, prefix: Uint8Array, at: number) {
  const isFileFormat = at === 0 && Buffer.from(prefix).toString("latin1", 0, 6) === "ARROW1";
  if (isFileFormat) {
    return badDataset(path, "expected Arrow's stream format, found its file format (ARROW1)", {
      hint: "load it with datasets and write it with save_to_disk",
    });
  }
  return cutFile(
    path,
    `expected an Arrow message at byte ${at}, found ${Buffer.from(prefix).toString("hex")}`,
  );
}
