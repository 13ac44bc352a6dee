/**
 * Dense bf16 TFLOP/s of tensor cores with fp32 accumulation, by the name that nvidia-smi gives a card; the first
 * pattern that matches counts. NVIDIA's own figures, from its datasheets and architecture whitepapers; where those
 * give only the sparse one, half of it.
 */
const TERAFLOPS: [name: RegExp, dense: number][] = [
  [/\bGB[23]00\b/, 2_500],
  [/\bB[23]00\b/, 2_250],
  [/\bGH200\b/, 989.4],
  [/\bH[12]00 NVL\b/, 835.5],
  [/\bH200\b/, 989.4],
  [/\bH100 PCIe\b/, 756.5],
  [/\bH100\b/, 989.4],
  [/\bA[18]00\b/, 312],
  [/\bL40S\b/, 362],
  [/\bL40\b/, 181],
  [/\bL4\b/, 121],
  [/\bA40\b/, 149.7],
  [/\bA30\b/, 165],
  [/\bA10\b/, 125],
  // The server's card is told only as 4 PFLOP/s of sparse fp4, which is eight times dense bf16.
  [/\bRTX PRO 6000 Blackwell Server\b/, 500],
  [/\bRTX PRO 6000 Blackwell Max-Q\b/, 438.9],
  [/\bRTX PRO 6000 Blackwell\b/, 503.8],
  [/\bRTX 6000 Ada\b/, 364.2],
  [/\bRTX A6000\b/, 154.8],
  // GeForce cards accumulate in fp32 at half of the rate that the larger figures on their boxes are of.
  [/\bRTX 5090(?! D| Laptop)\b/, 209.5],
  [/\bRTX 4090(?! D| Laptop)\b/, 165.2],
  [/\bRTX 3090(?! Ti| Laptop)\b/, 71],
];

/** FLOP/s, or null for a card that is not in the table. */
export function peakFlops(name: string): number | null {
  const found = TERAFLOPS.find(([pattern]) => pattern.test(name));
  return found ? found[1] * 1e12 : null;
}
