export interface Fault {
  kind: string;
  status?: number;
  contentType?: string;
  body?: unknown;
  response?: unknown;
  file?: Buffer | null;
}

export type MakeStates = (ids: number[], layerIds: number[], hidden: number) => Float32Array<ArrayBuffer>;

export interface FakeVllmOptions {
  model: string;
  served?: string;
  layerIds: number[];
  folder: string;
  port?: number;
  dtype?: "BF16" | "F16" | "F32";
  maxModelLen?: number;
  states?: MakeStates | null;
  nextToken?: ((ids: number[]) => number) | null;
}

export class FakeVllm {
  static start(options: FakeVllmOptions): Promise<FakeVllm>;
  url: string;
  folder: string;
  fault: Fault | null;
  requests: { prompt: number[]; request_id: string; model: string }[];
  openMax: number;
  owner: string;
  version: string | null;
  served: string;
  model: string;
  healthStatus: number;
  stop(): Promise<void>;
}

export const madeUpStates: MakeStates;
