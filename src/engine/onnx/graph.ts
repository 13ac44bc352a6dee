/**
 * Writes ONNX models: a graph builder, and the few protobuf messages that it needs, encoded by hand.
 * Field numbers: onnx/onnx.proto (ModelProto and what it holds), IR version 10.
 */

/** TensorProto.DataType. */
export const ONNX_TYPE = {
  float32: 1,
  uint16: 4,
  int32: 6,
  int64: 7,
  float16: 10,
  bfloat16: 16,
} as const;
export type OnnxType = keyof typeof ONNX_TYPE;

/** com.microsoft holds ONNX Runtime's fused operators. */
type Domain = "" | "com.microsoft";

type Attribute = number | { float: number } | readonly number[];

export interface NodeOptions {
  domain?: Domain;
  /** Whole numbers and lists of them are INT and INTS; `{ float }` is FLOAT. */
  attributes?: Record<string, Attribute>;
  /** Default 1. */
  outputs?: number;
}

export interface ExternalTensor {
  type: OnnxType;
  shape: readonly number[];
  /** Relative to the folder that the session is told. */
  file: string;
  offset: number;
  bytes: number;
}

/** A dimension is a length, or the name of one that each run decides. */
export type Dimension = number | string;

/** Builds one graph: values are named strings, nodes run in the order in which they were added. */
export class GraphBuilder {
  readonly #nodes: Uint8Array[] = [];
  readonly #first: Uint8Array[] = [];
  readonly #initializers: Uint8Array[] = [];
  readonly #inputs: Uint8Array[] = [];
  readonly #outputs: Uint8Array[] = [];
  #names = 0;

  input(name: string, type: OnnxType, shape: readonly Dimension[]): string {
    this.#inputs.push(valueInfo(name, type, shape));
    return name;
  }

  /** Makes `value` an output of the graph under its own name. */
  output(value: string, type: OnnxType, shape: readonly Dimension[]): void {
    this.#outputs.push(valueInfo(value, type, shape));
  }

  /** A tensor whose bytes stay in the file they are in. */
  external(name: string, tensor: ExternalTensor): string {
    this.#initializers.push(
      message(
        ...tensor.shape.map((n) => varintField(1, n)),
        varintField(2, ONNX_TYPE[tensor.type]),
        textField(8, name),
        ...Object.entries({ location: tensor.file, offset: tensor.offset, length: tensor.bytes }).map(
          ([key, value]) => bytesField(13, message(textField(1, key), textField(2, String(value)))),
        ),
        varintField(14, 1),
      ),
    );
    return name;
  }

  /** A 1-D int64 constant, as shapes and axes are given. */
  ints(values: readonly number[]): string {
    const name = this.#fresh("ints");
    const raw = new Uint8Array(BigInt64Array.from(values, BigInt).buffer);
    this.#initializers.push(
      message(
        varintField(1, values.length),
        varintField(2, ONNX_TYPE.int64),
        textField(8, name),
        bytesField(9, raw),
      ),
    );
    return name;
  }

  /** Adds a node and returns its outputs; an input "" is one left out. */
  nodes(op: string, inputs: readonly string[], options: NodeOptions = {}): string[] {
    const outputs = Array.from({ length: options.outputs ?? 1 }, () => this.#fresh(op));
    this.#nodes.push(node(op, inputs, outputs, options));
    return outputs;
  }

  /** As `nodes`, for a node of one output. `name` is that output's name where it matters. */
  node(op: string, inputs: readonly string[], options: NodeOptions & { name?: string } = {}): string {
    const output = options.name ?? this.#fresh(op);
    this.#nodes.push(node(op, inputs, [output], options));
    return output;
  }

  /** Adds a node before all those of `node` and `nodes`. */
  firstNode(op: string, inputs: readonly string[], options: NodeOptions = {}): string {
    const output = this.#fresh(op);
    this.#first.push(node(op, inputs, [output], options));
    return output;
  }

  /** The ModelProto, serialised. */
  build(): Uint8Array {
    const graph = message(
      ...[...this.#first, ...this.#nodes].map((item) => bytesField(1, item)),
      textField(2, "forebay"),
      ...this.#initializers.map((item) => bytesField(5, item)),
      ...this.#inputs.map((item) => bytesField(11, item)),
      ...this.#outputs.map((item) => bytesField(12, item)),
    );
    return message(
      varintField(1, IR_VERSION),
      bytesField(7, graph),
      bytesField(8, message(textField(1, ""), varintField(2, OPSET))),
      bytesField(8, message(textField(1, "com.microsoft"), varintField(2, 1))),
    );
  }

  #fresh(stem: string): string {
    this.#names += 1;
    return `${stem}_${this.#names}`;
  }
}

const IR_VERSION = 13;
/** BitCast, by which bf16 leaves as uint16, came with opset 26. */
const OPSET = 26;

const ATTRIBUTE_FLOAT = 1;
const ATTRIBUTE_INT = 2;
const ATTRIBUTE_INTS = 7;

function node(
  op: string,
  inputs: readonly string[],
  outputs: readonly string[],
  options: NodeOptions,
): Uint8Array {
  return message(
    ...inputs.map((name) => textField(1, name)),
    ...outputs.map((name) => textField(2, name)),
    textField(4, op),
    ...Object.entries(options.attributes ?? {}).map(([name, value]) => bytesField(5, attribute(name, value))),
    textField(7, options.domain ?? ""),
  );
}

function attribute(name: string, value: Attribute): Uint8Array {
  if (typeof value === "number") {
    return message(textField(1, name), varintField(3, value), varintField(20, ATTRIBUTE_INT));
  }
  if ("float" in value) {
    return message(textField(1, name), floatField(2, value.float), varintField(20, ATTRIBUTE_FLOAT));
  }
  return message(
    textField(1, name),
    ...value.map((item) => varintField(8, item)),
    varintField(20, ATTRIBUTE_INTS),
  );
}

function valueInfo(name: string, type: OnnxType, shape: readonly Dimension[]): Uint8Array {
  const dimensions = shape.map((n) =>
    bytesField(1, typeof n === "number" ? varintField(1, n) : textField(2, n)),
  );
  const tensor = message(varintField(1, ONNX_TYPE[type]), bytesField(2, message(...dimensions)));
  return message(textField(1, name), bytesField(2, bytesField(1, tensor)));
}

// The protobuf wire format: a tag is (field << 3 | wire type), a varint is 7 bits a byte, lowest first.

function message(...fields: Uint8Array[]): Uint8Array {
  return Buffer.concat(fields);
}

function varintField(field: number, value: number): Uint8Array {
  return Buffer.concat([varint(field << 3), varint(value)]);
}

function bytesField(field: number, bytes: Uint8Array): Uint8Array {
  return Buffer.concat([varint((field << 3) | 2), varint(bytes.length), bytes]);
}

function textField(field: number, text: string): Uint8Array {
  return bytesField(field, Buffer.from(text, "utf8"));
}

function floatField(field: number, value: number): Uint8Array {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(value);
  return Buffer.concat([varint((field << 3) | 5), bytes]);
}

function varint(value: number): Uint8Array {
  // Nearly all are tags and lengths of one byte, some ten thousand a model.
  if (value >= 0 && value < 128) return Uint8Array.of(value);
  const bytes: number[] = [];
  // A negative number goes as the 64 bits of its two's complement.
  let rest = BigInt.asUintN(64, BigInt(value));
  do {
    const low = Number(rest & 127n);
    rest >>= 7n;
    bytes.push(rest > 0n ? low | 128 : low);
  } while (rest > 0n);
  return Uint8Array.from(bytes);
}
