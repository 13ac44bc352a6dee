/**
 * The innermost loop over states, in WebAssembly's 128-bit instructions: JavaScript takes ten times as long for a number
 * (1.3 ns), and Node has nothing else that reaches them. Written here instruction by instruction, as no build makes it.
 */

/** Bytes that one turn of the loop takes. */
export const STEP_BYTES = 16;

/**
 * What is known of a tap, four vectors of 16 bytes: sum and sum of squares (two f64 each, to be added), the largest
 * pattern without its sign (eight u16), and the bits in which any number differs from the tap's first (eight u16).
 */
export const STATE_BYTES = 64;

/**
 * Adds `rows` rows of bf16 numbers to the tap's state at `state`: from `at` on, each `steps` (at least one) times 16 bytes
 * long, one begins `strideBytes` after the other. `first` is the tap's first number. All places are bytes in the memory.
 */
export type AddRows = (
  at: number,
  rows: number,
  strideBytes: number,
  steps: number,
  state: number,
  first: number,
) => void;

/** What of the platform's WebAssembly is used here; lib.dom, which has its types, is for browsers. */
declare const WebAssembly: {
  Memory: new (size: { initial: number }) => { buffer: ArrayBuffer };
  Module: new (bytes: Uint8Array) => object;
  Instance: new (
    module: object,
    imports: { host: { memory: object } },
  ) => { exports: Record<string, unknown> };
};

const PAGE_BYTES = 65_536;

/** Memory of at least `bytes`, and the loop over it. */
export function rowStatistics(bytes: number): { memory: ArrayBuffer; addRows: AddRows } {
  const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / PAGE_BYTES) });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(moduleBytes()), { host: { memory } });
  return { memory: memory.buffer, addRows: exports.addRows as AddRows };
}

// Types, and the instructions that are needed. Source: the WebAssembly core specification 2.0, "Binary format".
const I32 = 0x7f;
const V128 = 0x7b;
const get = (local: number) => [0x20, local];
const set = (local: number) => [0x21, local];
const i32Const = (value: number) => [0x41, ...signedLeb(value)];
const i32Add = [0x6a];
const i32Sub = [0x6b];
/** Goes back to the beginning of `body` as long as it leaves something other than zero. */
const loopWhile = (body: number[]) => [0x03, 0x40, ...body, 0x0d, 0x00, 0x0b];
const simd = (opcode: number, ...rest: number[]) => [0xfd, ...leb(opcode), ...rest];
/** The number of `vector` 16s of bytes after the address on the stack. */
const load = (vector: number) => simd(0x00, 0x00, ...leb(16 * vector));
const store = (vector: number) => simd(0x0b, 0x00, ...leb(16 * vector));
const zeros = simd(0x0c, ...Array<number>(16).fill(0));
const splat16 = simd(0x10);
const splat32 = simd(0x11);
const and = simd(0x4e);
const or = simd(0x50);
const xor = simd(0x51);
const shiftLeft32 = simd(0xab);
const max16 = simd(0x99);
const addF32 = simd(0xe4);
const multiplyF32 = simd(0xe6);
const addF64 = simd(0xf0);
/** The lower two f32 as f64. */
const promote = simd(0x5f);
const upperHalfLower = simd(0x0d, ...[8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15]);

function moduleBytes(): Uint8Array {
  return Uint8Array.from([
    ...[0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00],
    // One type: six i32 to nothing.
    ...section(1, [1, 0x60, 6, ...Array<number>(6).fill(I32), 0]),
    ...section(2, [1, ...name("host"), ...name("memory"), 0x02, 0x00, 0x01]),
    ...section(3, [1, 0]),
    ...section(7, [1, ...name("addRows"), 0x00, 0]),
    ...section(10, [1, ...sized(addRowsBody())]),
  ]);
}

function addRowsBody(): number[] {
  const [at, rows, stride, steps, state, first] = [0, 1, 2, 3, 4, 5];
  const [next, left] = [6, 7];
  const [numbers, even, odd, sums, sumsOdd, squares, squaresOdd, largest, differing, firsts] = [
    8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
  ];
  const addTo = (local: number, value: number[]) => [...get(local), ...value, ...addF32, ...set(local)];
  const square = (local: number) => [...get(local), ...get(local), ...multiplyF32];
  /** A bf16 is the upper half of an f32: of each pair, the even one is shifted there, the odd one stands there. */
  const step = [
    ...[...get(next), ...load(0), ...set(numbers)],
    ...[...get(numbers), ...i32Const(16), ...shiftLeft32, ...set(even)],
    ...[...get(numbers), ...i32Const(-65_536), ...splat32, ...and, ...set(odd)],
    ...[...addTo(sums, get(even)), ...addTo(sumsOdd, get(odd))],
    ...[...addTo(squares, square(even)), ...addTo(squaresOdd, square(odd))],
    ...[...get(largest), ...get(numbers), ...i32Const(0x7fff), ...splat16, ...and, ...max16, ...set(largest)],
    ...[...get(differing), ...get(numbers), ...get(firsts), ...xor, ...or, ...set(differing)],
    ...[...get(next), ...i32Const(STEP_BYTES), ...i32Add, ...set(next)],
    ...[...get(left), ...i32Const(1), ...i32Sub, ...set(left), ...get(left)],
  ];
  /** Four f32 into the two f64 of the state's `vector`: sums of a whole tap outgrow an f32, those of a row do not. */
  const keep = (vector: number, one: number, other: number) => [
    ...[...get(one), ...get(other), ...addF32, ...set(one)],
    ...[...get(state), ...get(state), ...load(vector)],
    ...[...get(one), ...promote, ...addF64],
    ...[...get(one), ...get(one), ...upperHalfLower, ...promote, ...addF64],
    ...store(vector),
  ];
  const row = [
    ...[sums, sumsOdd, squares, squaresOdd].flatMap((local) => [...zeros, ...set(local)]),
    ...[...get(at), ...set(next), ...get(steps), ...set(left)],
    ...loopWhile(step),
    ...keep(0, sums, sumsOdd),
    ...keep(1, squares, squaresOdd),
    ...[...get(at), ...get(stride), ...i32Add, ...set(at)],
    ...[...get(rows), ...i32Const(1), ...i32Sub, ...set(rows), ...get(rows)],
  ];
  return [
    ...[2, 2, I32, 10, V128],
    ...[...get(first), ...splat16, ...set(firsts)],
    ...[...get(state), ...load(2), ...set(largest)],
    ...[...get(state), ...load(3), ...set(differing)],
    ...loopWhile(row),
    ...[...get(state), ...get(largest), ...store(2)],
    ...[...get(state), ...get(differing), ...store(3)],
    0x0b,
  ];
}

function section(id: number, content: number[]): number[] {
  return [id, ...sized(content)];
}

function sized(content: number[]): number[] {
  return [...leb(content.length), ...content];
}

function name(text: string): number[] {
  return sized([...Buffer.from(text)]);
}

/** LEB128: seven bits a byte, the lowest first. */
function leb(value: number): number[] {
  return value < 0x80 ? [value] : [(value & 0x7f) | 0x80, ...leb(value >>> 7)];
}

function signedLeb(value: number): number[] {
  const isLast = value >= -0x40 && value < 0x40;
  return isLast ? [value & 0x7f] : [(value & 0x7f) | 0x80, ...signedLeb(value >> 7)];
}
