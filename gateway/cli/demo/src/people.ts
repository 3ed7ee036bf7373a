/** Who looks at the board: two members and a visitor, chosen by `?user=`. */

export interface Person {
  /** Null: anonymous. */
  readonly id: string | null;
  readonly name: string;
}

export const PEOPLE: readonly Person[] = [
  { id: 'ada', name: 'Ada' },
  { id: 'ben', name: 'Ben' },
  { id: null, name: 'Visitor' },
];

export function personOf(search: string): Person {
  const asked = new URLSearchParams(search).get('user');
  if (asked === null) return PEOPLE[0]!;
  return PEOPLE.find(({ id }) => id === asked) ?? PEOPLE[2]!;
}

export function linkTo({ id }: Person): string {
  return `?user=${id ?? 'visitor'}`;
}

/** The server gives a token to whoever asks: that is what makes it a demo. */
export async function tokenOf({ id }: Person): Promise<string | null> {
  if (id === null) return null;
  const response = await fetch(`demo/token?user=${encodeURIComponent(id)}`);
  if (!response.ok) throw new Error(`token: HTTP ${response.status}`);
  return (await response.text()).trim();
}
