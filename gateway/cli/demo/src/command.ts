/** What a person types to run the program that serves this page: where it is, and with which data. */

/** Where it cannot be told, the program's name. */
const NAME = 'tidegate';

export async function commandToType(): Promise<string> {
  try {
    const response = await fetch('demo/program');
    // A server without this route may answer with the page itself.
    const plain = response.headers.get('content-type')?.startsWith('text/plain') ?? false;
    if (response.ok && plain) return (await response.text()).trim() || NAME;
  } catch {
    // The server went away meanwhile.
  }
  return NAME;
}
