# Copyright (c) mmweightformer contributors. All rights reserved.
"""Ends the processes of a run as soon as one of them is gone or hangs.

Left to themselves, those that wait for a process that hangs do so for half an
hour, and those that wait for one that was killed show an error of sockets.
"""
import atexit
import os
import secrets
import select
import socket
import sys
import threading
import time
from typing import Dict, Optional

from torch import distributed

# How long a process may be silent, in seconds. It is silent as long as one
# call holds Python's lock, such as reading a large JSON file.
TIMEOUT = 45.
INTERVAL = 1.
BEAT, END, FAILURE = b'.', b'e', b'!'

_heartbeat: Optional['_Heartbeat'] = None


def watch_processes(rank: int,
                    world_size: int,
                    timeout: float = TIMEOUT) -> None:
    """Let the processes of the default group watch each other.

    The first one is connected to each of the others, and both ends send a
    byte every second, from a thread. A connection that closes without a
    farewell, as the system does for a process that is killed, or that is
    silent for too long, ends all processes with a message and status 1.

    Args:
        rank (int): That of this process.
        world_size (int): The number of processes.
        timeout (float): How long a process may be silent, in seconds.
            Defaults to 45.
    """
    if world_size == 1:
        return
    address = [None]
    if rank == 0:
        both = socket.has_dualstack_ipv6()
        listener = socket.create_server(
            ('', 0),
            family=socket.AF_INET6 if both else socket.AF_INET,
            backlog=world_size,
            dualstack_ipv6=both)
        # Others may find the port, but not what to say.
        address = [(listener.getsockname()[1], secrets.token_hex(16))]
    distributed.broadcast_object_list(address)
    port, token = address[0]
    peers: Dict[socket.socket, int] = {}
    if rank == 0:
        listener.settimeout(timeout)
        while len(peers) < world_size - 1:
            connection = listener.accept()[0]
            connection.settimeout(timeout)
            try:
                greeting = connection.makefile().readline().split()
            except (OSError, ValueError):
                greeting = []
            if greeting[:1] == [token]:
                peers[connection] = int(greeting[1])
            else:
                connection.close()
        listener.close()
    else:
        connection = socket.create_connection(
            (os.environ['MASTER_ADDR'], port), timeout)
        connection.sendall(f'{token} {rank}\n'.encode())
        peers[connection] = 0
    global _heartbeat
    _heartbeat = _Heartbeat(peers, rank, world_size, timeout)


def end_with_error() -> None:
    """Say no farewell: this process exits by an error of its own."""
    if _heartbeat is not None:
        _heartbeat.fail()


class _Heartbeat:

    def __init__(self, peers: Dict[socket.socket, int], rank: int,
                 world_size: int, timeout: float) -> None:
        self.peers = peers
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.failed = False
        self.stopped = threading.Event()
        self.last_heard = dict.fromkeys(peers, time.monotonic())
        self.excepthook = sys.excepthook
        sys.excepthook = self.show
        atexit.register(self.end)
        # Or a connection stays open as long as a worker of a data loader.
        os.register_at_fork(after_in_child=self.close)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        for peer in self.peers:
            peer.close()

    def show(self, *error) -> None:
        """In place of sys.excepthook."""
        self.fail()
        self.excepthook(*error)

    def fail(self) -> None:
        # If it is that another one is gone, the thread says so, and ends us.
        time.sleep(2 * INTERVAL)
        self.failed = True

    def end(self) -> None:
        """As the interpreter exits, after an error or not."""
        self.stopped.set()
        self.thread.join()
        if not self.failed:
            self.send(END)
        self.close()

    def send(self, message: bytes) -> None:
        for peer in self.peers:
            try:
                peer.sendall(message)
            except OSError:
                pass  # it is gone, as reading from it will say

    def run(self) -> None:
        while self.peers and not self.stopped.is_set():
            self.send(BEAT)
            for peer in select.select(list(self.peers), [], [], INTERVAL)[0]:
                self.listen(peer)
            for peer, heard in self.last_heard.items():
                silent = time.monotonic() - heard
                if silent > self.timeout:
                    self.stop(f'{self.name(peer)} has been silent for '
                              f'{silent:.0f} seconds: it hangs, or its '
                              'machine is not to be reached.')
            # What has just been heard need not be waited for.
            self.stopped.wait(INTERVAL / 2)

    def listen(self, peer: socket.socket) -> None:
        try:
            heard = peer.recv(4096)
        except OSError:
            heard = b''
        if FAILURE in heard:
            self.stop(heard.split(FAILURE)[1].decode())
        self.last_heard[peer] = time.monotonic()
        if END in heard:  # it is done, and may leave
            del self.peers[peer], self.last_heard[peer]
            peer.close()
        elif not heard:
            self.stop(f'{self.name(peer)} is gone: it was killed, or has '
                      'ended with an error that its own output shows.')

    def name(self, peer: socket.socket) -> str:
        return f'Process {self.peers[peer]} of {self.world_size}'

    def stop(self, message: str) -> None:
        if self.failed:
            return  # by our own error, of which the others know already
        self.send(FAILURE + message.encode())
        print(
            f'\n{message} So process {self.rank} ends as well.',
            file=sys.stderr,
            flush=True)
        # The main thread may wait for the other one without an end.
        os._exit(1)
