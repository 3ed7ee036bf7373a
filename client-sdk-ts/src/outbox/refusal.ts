/** What a refused write says to a person: a sentence for the server's code, and after it what the server adds. */

import type { RejectionCode } from '../protocol/frames.ts';

/** Where the code's own words do not say it. */
const SENTENCES: Partial<Record<RejectionCode, string>> = {
  conflict: 'somebody else changed the row first',
  dependency_rejected: 'an earlier write on the same row was not accepted',
  row_refused: 'refused by row-level security',
  constraint_unique: 'another row has this value',
  constraint_foreign_key: 'a row is missing, or is still referred to',
  constraint_check: 'refused by a check',
  constraint_not_null: 'null in a column that requires a value',
};

/** The server's message is added whole, never read: no part of it is to be parsed. Other codes read as they are: `permission denied`. */
export function refusal(code: string, message: string | null): string {
  const sentence = SENTENCES[code as RejectionCode] ?? code.replaceAll('_', ' ');
  return message ? `${sentence}: ${message}` : sentence;
}
