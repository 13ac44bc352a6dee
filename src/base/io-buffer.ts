/**
 * On AMD's Zen 3 and 4 the kernel's copy (`rep movsb`) takes six times as long to an address 16 bytes after the start
 * of a page, which is where malloc puts every large buffer: 0.6 CPU seconds a GB read from the page cache, not 0.1.
 */
const SKIP_BYTES = 48;

/** `bytes` of memory to read files into; not cleared. */
export function ioBuffer(bytes: number): Buffer<ArrayBuffer> {
  return Buffer.allocUnsafeSlow(SKIP_BYTES + bytes).subarray(SKIP_BYTES);
}

/** `bytes` of such memory for threads to share; each looks at it through `sharedView`. */
export function sharedIoBuffer(bytes: number): SharedArrayBuffer {
  return new SharedArrayBuffer(SKIP_BYTES + bytes);
}

/** The whole usable part of a `sharedIoBuffer`. */
export function sharedView(shared: SharedArrayBuffer): Buffer<SharedArrayBuffer> {
  return Buffer.from(shared, SKIP_BYTES);
}

/** The `bytes` that a `sharedIoBuffer` was made with. */
export function sharedBytes(shared: SharedArrayBuffer): number {
  return shared.byteLength - SKIP_BYTES;
}
