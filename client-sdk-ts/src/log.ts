/** What the SDK reports besides its signals. No row values, keys or tokens, ever. */

export type Level = 'error' | 'warn' | 'info' | 'silent';

export interface LogEvent {
  readonly level: 'error' | 'warn' | 'info';
  /** What happened: a code. */
  readonly event: string;
  readonly detail: Readonly<Record<string, string | number | boolean>>;
}

export type Log = (level: LogEvent['level'], event: string, detail?: LogEvent['detail']) => void;

/** `silent` is not among them: nothing is as important as that. */
const LEVELS: readonly Level[] = ['error', 'warn', 'info'];

export function logTo(target: Level | ((event: LogEvent) => void)): Log {
  if (typeof target === 'function') return (level, event, detail = {}) => target({ level, event, detail });
  return (level, event, detail = {}) => {
    // biome-ignore lint/suspicious/noConsole: the one place that writes to the console
    if (LEVELS.indexOf(level) <= LEVELS.indexOf(target)) console[level](`tidegate: ${event}`, detail);
  };
}
