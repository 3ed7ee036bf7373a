/** The total tables of state and event: complete by type; here, what must hold of all their cells. */

import { expect, test } from 'vitest';
import { EVENTS, HAS_SOCKET, STATES as STATE_ROWS, type StateName } from '../../src/connection/states.ts';
import { ENTRY_EVENTS, ENTRIES as ENTRY_ROWS } from '../../src/outbox/entry.ts';
import { PHASE_EVENTS, PHASES as PHASE_ROWS } from '../../src/replica/phase.ts';

/** Rows with the names of their columns. */
function named<S extends string, E extends string, T>(
  rows: { readonly [K in S]: readonly T[] },
  events: readonly E[],
): Record<S, Record<E, T>> {
  const named = Object.entries<readonly T[]>(rows).map(([state, row]) => [
    state,
    Object.fromEntries(events.map((event, index) => [event, row[index]!])),
  ]);
  return Object.fromEntries(named);
}
const STATES = named<StateName, (typeof EVENTS)[number], StateName>(STATE_ROWS, EVENTS);
const PHASES = named(PHASE_ROWS, PHASE_EVENTS);
const ENTRIES = named(ENTRY_ROWS, ENTRY_EVENTS);

test('a closed connection stays closed, and every other one can be closed', () => {
  for (const [from, row] of Object.entries(STATES)) {
    expect(row.close).toBe('closed');
    if (from === 'closed') expect(new Set(Object.values(row))).toEqual(new Set(['closed']));
  }
});

test('needs-auth and failed are left only by the application', () => {
  for (const from of ['needs-auth', 'failed'] as const) {
    for (const [event, to] of Object.entries(STATES[from])) {
      if (to !== from && event !== 'refused') expect(['again', 'close']).toContain(event);
    }
  }
});

test('a connection is online only after welcome, and a socket opens only after a token', () => {
  for (const [from, row] of Object.entries(STATES) as [StateName, Record<string, StateName>][]) {
    for (const [event, to] of Object.entries(row)) {
      if (to === 'online' && from !== 'online') expect([from, event]).toEqual(['greeting', 'welcome']);
      if (HAS_SOCKET.has(to) && !HAS_SOCKET.has(from))
        expect([from, event, to]).toEqual(['authorizing', 'token', 'opening']);
    }
  }
});

test('v5 a scope is joined only from resuming or rebuilding, and every phase survives a loss', () => {
  for (const [from, row] of Object.entries(PHASES)) {
    for (const [event, to] of Object.entries(row)) {
      if (to === 'joined' && from !== 'joined') {
        expect(['resuming', 'rebuilding']).toContain(from);
        expect(event).toBe('joined');
      }
    }
    expect(row.lost).toBe(from === 'refused' ? 'refused' : 'off');
    expect(row.refuse).toBe('refused');
  }
});

test('v3 an accepted write can only become visible; a parked one only be tried again or given up', () => {
  expect(Object.entries(ENTRIES.committed).filter(([, to]) => to !== 'violation' && to !== 'committed')).toEqual([
    ['materialized', 'gone'],
    ['drop', 'gone'],
  ]);
  expect(Object.entries(ENTRIES.parked).filter(([, to]) => to !== 'violation' && to !== 'parked')).toEqual([
    ['requeue', 'queued'],
    ['drop', 'gone'],
  ]);
  for (const [from, row] of Object.entries(ENTRIES)) {
    if (row.send === 'sent') expect(['queued', 'sent']).toContain(from);
    if (row.accepted === 'committed') expect(['sent', 'committed']).toContain(from);
  }
});
