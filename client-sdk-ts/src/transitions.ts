/**
 * Total tables of state and event: one row for each state, one column for each event, in the order of a list. A missing cell does
 * not compile.
 */
export type Transitions<State extends string, Events extends readonly string[], To = State> = {
  readonly [S in State]: { readonly [E in keyof Events]: To };
};

export function after<State extends string, Events extends readonly string[], To>(
  table: Transitions<State, Events, To>,
  events: Events,
  state: State,
  event: Events[number],
): To {
  return table[state][events.indexOf(event)]!;
}
