/**
 * Just enough of FlatBuffers to read Arrow's messages, every access checked against the buffer.
 * Source: "FlatBuffer Internals" (tables, vtables, vectors, unions).
 */
export class FlatTable {
  readonly #view: DataView;
  readonly #position: number;
  readonly #vtable: number;
  readonly #vtableBytes: number;

  private constructor(view: DataView, position: number) {
    this.#view = view;
    this.#position = position;
    this.#vtable = position - view.getInt32(position, true);
    this.#vtableBytes = view.getUint16(this.#vtable, true);
  }

  /** The root table of a buffer. All methods throw a RangeError where an offset leads outside. */
  static root(bytes: Uint8Array): FlatTable {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return new FlatTable(view, view.getUint32(0, true));
  }

  bool(field: number): boolean {
    return this.uint8(field) !== 0;
  }

  uint8(field: number): number {
    const at = this.#at(field);
    return at === 0 ? 0 : this.#view.getUint8(at);
  }

  int16(field: number): number {
    const at = this.#at(field);
    return at === 0 ? 0 : this.#view.getInt16(at, true);
  }

  int32(field: number): number {
    const at = this.#at(field);
    return at === 0 ? 0 : this.#view.getInt32(at, true);
  }

  int64(field: number): number {
    const at = this.#at(field);
    return at === 0 ? 0 : int64At(this.#view, at);
  }

  string(field: number): string {
    const at = this.#at(field);
    if (at === 0) return "";
    const start = at + this.#view.getUint32(at, true);
    const length = this.#view.getUint32(start, true);
    return Buffer.from(this.#view.buffer, this.#view.byteOffset, this.#view.byteLength).toString(
      "utf8",
      start + 4,
      start + 4 + length,
    );
  }

  table(field: number): FlatTable | null {
    const at = this.#at(field);
    return at === 0 ? null : new FlatTable(this.#view, at + this.#view.getUint32(at, true));
  }

  tables(field: number): FlatTable[] {
    const [start, length] = this.#vector(field, 4);
    return Array.from({ length }, (_, i) => {
      const at = start + 4 * i;
      return new FlatTable(this.#view, at + this.#view.getUint32(at, true));
    });
  }

  /** A vector of int64, or of structs of `perItem` int64 each, flattened. */
  int64s(field: number, perItem = 1): Float64Array {
    const [start, length] = this.#vector(field, 8 * perItem);
    const values = new Float64Array(length * perItem);
    for (let i = 0; i < values.length; i += 1) values[i] = int64At(this.#view, start + 8 * i);
    return values;
  }

  #vector(field: number, itemBytes: number): [start: number, length: number] {
    const at = this.#at(field);
    if (at === 0) return [0, 0];
    const start = at + this.#view.getUint32(at, true);
    const length = this.#view.getUint32(start, true);
    // Never allocate by a length that the buffer cannot hold.
    if (start + 4 + length * itemBytes > this.#view.byteLength) throw new RangeError("vector outside buffer");
    return [start + 4, length];
  }

  #at(field: number): number {
    const slot = 4 + 2 * field;
    if (slot + 2 > this.#vtableBytes) return 0;
    const offset = this.#view.getUint16(this.#vtable + slot, true);
    return offset === 0 ? 0 : this.#position + offset;
  }
}

/** Sizes and counts; anything beyond 2^53 is no size of ours. By halves, since a BigInt for each costs more than the rest. */
function int64At(view: DataView, at: number): number {
  const value = view.getInt32(at + 4, true) * 2 ** 32 + view.getUint32(at, true);
  if (!Number.isSafeInteger(value)) throw new RangeError(`the count ${value} is out of range`);
  return value;
}
