import { expect, test } from "vitest";
import { peakFlops } from "./card-peak.ts";

// Names as nvidia-smi --query-gpu=name prints them.
test.each([
  ["NVIDIA H100 80GB HBM3", 989.4],
  ["NVIDIA H100 PCIe", 756.5],
  ["NVIDIA H100 NVL", 835.5],
  ["NVIDIA H200", 989.4],
  ["NVIDIA H200 NVL", 835.5],
  ["NVIDIA GH200 480GB", 989.4],
  ["NVIDIA B200", 2_250],
  ["NVIDIA GB200", 2_500],
  ["NVIDIA A100-SXM4-80GB", 312],
  ["A100-PCIE-40GB", 312],
  ["NVIDIA A100 80GB PCIe", 312],
  ["NVIDIA L40S", 362],
  ["NVIDIA L40", 181],
  ["NVIDIA L4", 121],
  ["NVIDIA A10", 125],
  ["NVIDIA A40", 149.7],
  ["NVIDIA RTX 6000 Ada Generation", 364.2],
  ["NVIDIA RTX A6000", 154.8],
  ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8],
  ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9],
  ["NVIDIA RTX PRO 6000 Blackwell Server Edition", 500],
  ["NVIDIA GeForce RTX 5090", 209.5],
  ["NVIDIA GeForce RTX 4090", 165.2],
  ["NVIDIA GeForce RTX 3090", 71],
])("%s: %d TFLOP/s", (name, teraflops) => {
  expect(peakFlops(name)).toBe(teraflops * 1e12);
});

test.each([
  "NVIDIA A10G",
  "NVIDIA GeForce RTX 5090 D",
  "NVIDIA GeForce RTX 4090 Laptop GPU",
  "NVIDIA GeForce RTX 3090 Ti",
  "Quadro RTX 6000",
  "Tesla T4",
  "NVIDIA L400",
  "AMD EPYC 9B14",
  "",
])("%j is not in the table: unknown, not the nearest name's", (name) => {
  expect(peakFlops(name)).toBeNull();
});
