/** The connection: its status in words, and a switch that cuts it, so that offline work can be seen. */

import type { Environment, SocketLike, Status, Sync } from 'tidegate';
import { byId } from './dom.ts';
import type { Tables } from './schema.ts';

export class Line {
  #cut = false;
  readonly #sockets = new Set<WebSocket>();

  readonly environment: Pick<Environment, 'socket'> = {
    socket: (url, subprotocol) => {
      if (this.#cut) throw new Error('cut');
      const socket = new WebSocket(url, subprotocol);
      this.#sockets.add(socket);
      socket.addEventListener('close', () => this.#sockets.delete(socket));
      return socket as unknown as SocketLike;
    },
  };

  attach(sync: Sync<Tables>): void {
    const button = byId('pause');
    button.addEventListener('click', () => {
      this.#cut = !this.#cut;
      button.setAttribute('aria-pressed', String(this.#cut));
      button.textContent = this.#cut ? 'Go online' : 'Work offline';
      if (!this.#cut) return sync.reconnect();
      for (const socket of this.#sockets) {
        // What a lost network looks like to the page.
        socket.onclose?.(new CloseEvent('close', { code: 1006 }));
        socket.close();
      }
      this.#show(sync.status.value);
    });
    sync.status.subscribe((status) => this.#show(status));
    // The countdown of the next attempt.
    setInterval(() => this.#show(sync.status.value), 500);
  }

  #show(status: Status): void {
    const element = byId('status');
    const text = this.#cut ? 'offline, by your wish' : wordsFor(status);
    const state = this.#cut ? 'offline' : status.state;
    if (element.textContent !== text) element.textContent = text;
    element.dataset.state = state;
  }
}

function wordsFor(status: Status): string {
  switch (status.state) {
    case 'online':
      return 'online';
    case 'idle':
    case 'closed':
      return status.state;
    case 'connecting':
      return 'connecting';
    case 'offline': {
      const seconds = Math.ceil(Math.max(0, (status.retryAt ?? 0) - Date.now()) / 1000);
      return seconds > 0 ? `offline, next try in ${seconds} s` : 'offline';
    }
    case 'needs-auth':
      return 'not signed in';
    case 'failed':
      return `stopped: ${status.cause.message}`;
  }
}
