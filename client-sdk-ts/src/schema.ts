/** The generated schema: which tables and columns an application was written against. SCHEMA.md has the exact format. */

/** Row types by table name. */
export type Tables = Record<string, object>;

/** Wire types of single values. */
export type ScalarType =
  | 'bool'
  | 'int'
  | 'int64'
  | 'float32'
  | 'float64'
  | 'string'
  | 'uuid'
  | 'json'
  | 'numeric'
  | 'date'
  | 'time'
  | 'timetz'
  | 'timestamp'
  | 'timestamptz'
  | 'interval'
  | 'bytes';

/** Wire types of columns, as the server's manifest names them. */
export type WireType = ScalarType | `array:${ScalarType}`;

/** A column's declaration: its wire type, with `?` where it may be null. */
export type Column = WireType | `${WireType}?`;

export interface TableSchema<R extends object = object> {
  /** Schema-qualified name, such as `public.items`. */
  readonly name: string;
  /** The primary key's column. */
  readonly key: keyof R & string;
  /** Whether clients may write to it at all. */
  readonly write: boolean;
  readonly columns: { readonly [C in keyof R & string]-?: Column };
}

export interface Schema<T extends Tables> {
  /** Hash of the tables below, as the generator computed it. Names the schema in logs and `inspect()`. */
  readonly hash: string;
  readonly tables: { readonly [K in keyof T & string]: TableSchema<T[K]> };
}

/** A column as the SDK works with it. */
export interface ColumnSpec {
  readonly name: string;
  readonly type: WireType;
  readonly nullable: boolean;
}

/** A table as the SDK works with it. */
export interface TableSpec {
  /** The name by which the application calls it. */
  readonly alias: string;
  readonly name: string;
  readonly key: ColumnSpec;
  readonly write: boolean;
  readonly columns: ReadonlyMap<string, ColumnSpec>;
}

export function readSchema(schema: Schema<Tables>): Map<string, TableSpec> {
  const tables = new Map<string, TableSpec>();
  for (const [alias, { name, key, write, columns }] of Object.entries(schema.tables)) {
    const specs = new Map<string, ColumnSpec>();
    for (const [column, declared] of Object.entries<Column>(columns)) {
      const nullable = declared.endsWith('?');
      const type = (nullable ? declared.slice(0, -1) : declared) as WireType;
      specs.set(column, { name: column, type, nullable });
    }
    const keySpec = specs.get(key);
    if (keySpec === undefined) throw new TypeError(`schema: table ${alias} has no key column`);
    tables.set(alias, { alias, name, key: keySpec, write, columns: specs });
  }
  return tables;
}
