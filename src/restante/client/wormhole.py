"""Wormholes: what all of them do (`BaseWormhole`), and those that end with the process (`Wormhole`)."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, Self, get_args
from weakref import WeakSet

from restante.client.arguments import check_flags, check_seconds, checked_message
from restante.client.connection.driver import Driver
from restante.client.connection.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.client.connection.server import ServerEndpoint
from restante.client.connection.work import DEFAULT_MAX_BITS
from restante.client.core.machine import Machine, Mood, check_mood
from restante.client.core.outputs import MessageReceived, NameplatesListed
from restante.client.core.state import NEW_BYTES, NameplateStatus, WormholeState, new_state
from restante.client.defaults import DEFAULT_SERVER, DEFAULT_WORDS
from restante.client.errors import (
    ClosedError,
    LonelyError,
    NoReceiptsError,
    NoSeedError,
    ServerGoneError,
    UndeliveredError,
    WormholeError,
)
from restante.client.events import Awaited, Closed, Event, Failed, KeyAgreed, PeerConfirmed, PeerSilent
from restante.client.protocol import code as codes
from restante.client.protocol import keys
from restante.client.protocol.hkdf import hkdf
from restante.client.protocol.seeds import seed_of
from restante.client.tasks import ChangeNotifier, until_done
from restante.client.timing_log import TimingLog
from restante.common.dice import Dice, SystemDice
from restante.common.errors import Misuse

# ── Sent messages ─────────────────────────────────────────────────────────────────────────────────


Until = Literal["sent", "stored", "delivered"]
"""What `BaseWormhole.send` waits for: that the message is on its way, that the server has it on its disk, or that the
peer's application has processed it."""

UNTIL: Final = get_args(Until)


class SentMessage:
    """A message that was sent. Its methods raise what those of its wormhole raise."""

    def __init__(self, wormhole: BaseWormhole, number: int | None) -> None:
        self._wormhole, self._number = wormhole, number

    @property
    def number(self) -> int:
        """Its number among this side's messages, from 0. Raises `Misuse` until the step that sends it is saved."""
        if self._number is None:
            raise Misuse("a message of a step is sent when the step is saved: ask for it then")
        return self._number

    async def _reached(self, until: Until) -> None:
        if until == "stored":
            await self.stored()
        elif until == "delivered":
            await self.delivered()

    async def stored(self) -> None:
        """Wait until the server has the message on its disk. Messages are sent to it when the peer is there.

        Raises:
            Misuse: the step that sends the message is not saved yet.

        """
        await self._wormhole._wait_until_stored(self.number)

    async def delivered(self) -> None:
        """Wait for the peer's receipt, which says that its application has processed the message.

        Raises:
            Misuse: the step that sends the message is not saved yet.
            NoReceiptsError: the wormhole was created without `receipts=True`, or the peer's client sends no receipts.

        """
        await self._wormhole._wait_until_delivered(self.number)


# ── Unread messages ───────────────────────────────────────────────────────────────────────────────


class UnreadMessages:
    """The messages of the peer that the program has not read, in order."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._max_messages, self._max_bytes = options.max_unread_messages, options.max_unread_bytes
        self._messages: deque[MessageReceived] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> MessageReceived:
        return self._messages[index]

    def add(self, message: MessageReceived) -> None:
        """Add the next message."""
        self._messages.append(message)
        self._bytes += len(message.plaintext)

    def pop(self) -> MessageReceived:
        """Remove the first message and return it."""
        message = self._messages.popleft()
        self._bytes -= len(message.plaintext)
        return message

    @property
    def full(self) -> bool:
        """Whether no more should come."""
        return len(self._messages) >= self._max_messages or self._bytes >= self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether more may come again."""
        return 2 * len(self._messages) <= self._max_messages and 2 * self._bytes <= self._max_bytes


# ── Wormholes ─────────────────────────────────────────────────────────────────────────────────────


CLOSED_EARLY: Final = "the wormhole was closed before a peer came"

CANCELLED_SECONDS: Final = 1.0
"""Seconds after a cancellation for which a wormhole that ends still waits for its server."""


class BaseWormhole:
    """A connection of two programs through a mailbox server, encrypted with a key that only they know.

    It connects when its context is entered, which is possible once. After a lost connection it connects again.
    Methods wait without a limit: use `asyncio.timeout`.

    A method that would wait raises `Misuse` if the context was not entered, and the wormhole's `WormholeError` if it
    has failed. If it was closed, the method raises `LonelyError` if no peer came, and otherwise `ClosedError`.
    """

    def __new__(cls, *arguments: object, **_: object) -> Self:
        """Name the functions that make wormholes to a program that calls a class."""
        if not any(isinstance(argument, WormholeState) for argument in arguments):
            raise Misuse("a wormhole is made with Wormhole.create(app_id, …), or Journal.wormhole(name, app_id, …)")
        return super().__new__(cls)

    def __init__(
        self,
        state: WormholeState,
        server: ServerEndpoint,
        dice: Dice,
        *,
        on_event: Callable[[Event], None] | None,
        save: Callable[[], Awaitable[None]] | None = None,
        waits: bool = False,
    ) -> None:
        """Continue from a state. Programs use `Wormhole.create` or `Journal.wormhole`."""
        self._machine = Machine(state, dice.draw, lasting=save is not None)
        self._dice, self._options = dice, server.options
        self._on_event = on_event
        self._changes = ChangeNotifier()
        self._driver = Driver(
            self._machine,
            server,
            self._handle,
            dice,
            changed=self._changes.notify,
            on_store_error=self._fail,
            save=save,
            waits=waits,
        )
        self._running: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[WormholeError | None] | None = None
        self._informed: WeakSet[object] = WeakSet()
        """Tasks that got the wormhole's error, or want none."""
        self._abandoned = False
        """Whether nothing of the peer is waited for any more."""
        self._unread, self._drops_messages = UnreadMessages(server.options), False
        self._nameplates: list[str] | None = None
        self._error: Exception | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise Misuse("a wormhole is entered once: create another one")
        if self._closing is not None:
            raise ClosedError("the wormhole was closed before it was entered: create another one")
        self._running = asyncio.create_task(self._run())
        return self

    # ── the code ──────────────────────────────────────────────────────────────────────────────────

    async def allocate_code(self, words: int = DEFAULT_WORDS) -> str:
        """Ask the server for a number, and return a new code. The code is for one peer: tell it to the person there.

        A wormhole that has a code already, or has asked for one in an earlier process, returns that code.

        Args:
            words: words after the number, each of which is 8 bits; 1 to `MAX_WORDS`.

        Raises:
            Misuse: the number of words is outside these bounds.

        """
        codes.check_word_count(words)
        self._check_open()
        if self._state.nameplate_status is NameplateStatus.NONE:
            self._machine.allocate(codes.random_words(self._dice.draw(words)))
            self._driver.carry_out()
        await self._wait_until(lambda: self._state.code is not None)
        await self._driver.wait_until_saved()
        assert self._state.code is not None
        return self._state.code

    async def set_code(self, code: str) -> None:
        """Use a code that a person was told, or that both sides agreed on. It may be set again.

        It does not wait for the server, and does not know whether anybody else has the code.

        Raises:
            CodeError: it is not a code; the text says what is wrong.
            Misuse: the wormhole has another code.

        """
        await self._use_code(code)

    async def _use_code(self, code: str, mailbox: str | None = None) -> None:
        """Use a code. With a mailbox, claim no nameplate."""
        self._check_open()
        if self._state.nameplate_status is NameplateStatus.NONE:
            self._driver.timed(lambda: self._machine.set_code(code, mailbox))
        elif self._state.code != code or mailbox not in {None, self._state.mailbox}:
            raise Misuse("a wormhole has one code, and this one has another: create a new one")
        self._driver.carry_out()
        await self._driver.wait_until_saved()

    async def nameplates(self) -> list[str]:
        """Return the nameplates in use, which are the numbers of codes. Some servers list none."""
        self._nameplates = None
        try:
            self._machine.list_nameplates()
            self._driver.carry_out()
            await self._driver.wait_until_saved()
            await self._wait_until(lambda: self._nameplates is not None)
        finally:
            self._machine.forget_list()
        return self._nameplates or []

    async def complete(self, prefix: str, words: int = DEFAULT_WORDS) -> Sequence[str]:
        """Return what the beginning of a code may become next, as `completions` does.

        If the beginning has no hyphen, the server is asked for its nameplates.

        Args:
            prefix: what a user has typed.
            words: words of the code, 1 to `MAX_WORDS`.

        """
        codes.check_completable(prefix, words)
        nameplates = [] if "-" in prefix else await self.nameplates()
        return codes.completions(prefix, nameplates, words)

    # ── the peer ──────────────────────────────────────────────────────────────────────────────────

    async def verifier(self) -> bytes:
        """Wait for the peer. Return 32 bytes that are the same at both sides, unless somebody is between them.

        People compare some of them, in hex for example, where nobody can alter what they say.
        """
        await self._wait_for_peer()
        return keys.verifier(self._key)

    async def versions(self) -> dict[str, Any]:
        """Wait for the peer. Return the `versions` of its application: those of `Wormhole.create`, or `{}`."""
        await self._wait_for_peer()
        return self._state.peer_versions or {}

    async def derive_key(self, purpose: str, size: int = keys.KEY_BYTES) -> bytes:
        """Wait for the peer. Return a key that only both sides know. The Python client derives the same.

        Args:
            purpose: names what the key is for, like `example.com/files`. Each purpose has another key.
            size: bytes of the key, 1 to 8160.

        Raises:
            Misuse: the purpose is not a text, or the size is outside these bounds.

        """
        keys.check_derivable(purpose, size)
        await self._wait_for_peer()
        return hkdf(self._key, purpose.encode(), size)

    async def seed(self) -> bytes:
        """Wait for the peer. Return 32 secret bytes from which both sides derive the code of their next wormhole.

        Store them. The next time, both sides call `set_code(seed_code(seed))`. Each wormhole has another seed.

        Raises:
            NoSeedError: one of the two wormholes was created without `seeds=True`.

        """
        await self._wait_for_peer()
        if not self._state.abilities.seeds:
            raise NoSeedError("this wormhole has no seed: create it with seeds=True")
        if not self._state.peer_abilities.seeds:
            raise NoSeedError("the peer did not offer a seed: agree on a code each time")
        return seed_of(self._key)

    # ── messages ──────────────────────────────────────────────────────────────────────────────────

    async def send(self, message: bytes, until: Until = "sent") -> SentMessage:
        """Send a message. `until` says whether to wait until the server has stored it, or the peer has processed it.

        A message that is sent before the peer is there waits for the peer. While too many earlier messages are not
        stored (`ConnectionOptions.max_unstored_messages`), this method waits. Read the peer's messages meanwhile:
        while too many of them are unread (`ConnectionOptions.max_unread_messages`), the client reads nothing from the
        server, and does not learn what is stored. A lost connection loses no message.

        Args:
            message: at most `MAX_SENT_BYTES` bytes.
            until: `sent`, `stored` (`SentMessage.stored`) or `delivered` (`SentMessage.delivered`).

        Raises:
            TypeError, Misuse: the message is not bytes, or is too long: send it in parts.
            NoReceiptsError: `until` is `delivered`, and there are no receipts. If this wormhole was created without
                `receipts=True`, nothing was sent.

        """
        data = checked_message(message)
        self._check_until(until)
        await self._wait_until(self._may_send)
        self._check_open()
        number = self._machine.send(data)
        self._driver.carry_out()
        await self._driver.wait_until_saved()
        sent = SentMessage(self, number)
        if until != "sent":
            await sent._reached(until)
        return sent

    def _may_send(self) -> bool:
        unstored, options = self._machine.unstored, self._options
        return unstored.messages < options.max_unstored_messages and unstored.bytes < options.max_unstored_bytes

    def _check_until(self, until: Until) -> None:
        """Raise Misuse or NoReceiptsError if it cannot be known whether a message is sent, stored or delivered."""
        if until not in UNTIL:
            raise Misuse(f"a message is sent until it is {', '.join(UNTIL[:-1])} or {UNTIL[-1]}, not {until!r}")
        if until == "delivered":
            self._check_receipts_wanted()
        if until != "sent" or not self._machine.lasting:
            self._check_entered()

    async def flush(self) -> None:
        """Wait until the server has stored all messages. It gets them when the peer is there: this waits for both."""
        await self._wait_until(lambda: self._machine.all_stored)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    async def close(self, mood: Mood | None = None) -> None:
        """Wait until everything sent is stored, then release the nameplate and close the mailbox.

        What was sent is lost if no peer was there. If the server does not answer, this takes about twice
        `ConnectionOptions.close_seconds`. After a cancellation it takes 2 s, and the time of the disk, at most.

        Args:
            mood: how it went, for the server's records. By default `happy`, or `lonely` if no peer came.

        Raises:
            Misuse: it is another mood, or this is not in the wormhole's context.
            WormholeError: the wormhole failed, and no other call of this task has raised the error.
            ServerGoneError: the server has not stored all that was sent.

        """
        check_mood(mood)
        self._check_entered()
        await self._end(lambda: self._close(mood))

    async def _close(self, mood: Mood | None) -> WormholeError | None:
        """Close the mailbox. Return what `close` raises if the wormhole has not failed."""
        raise NotImplementedError

    async def _end(
        self,
        end: Callable[[], Coroutine[Any, Any, WormholeError | None]],
        in_block: BaseException | None = None,
        *,
        silent: bool = False,
    ) -> None:
        """Let `end` end the wormhole, unless it ends already. Raise its error, or the one that `end` returns.

        A task gets an error of the wormhole once, and none after an exception in its block. Other errors are those of
        the function for events: they are raised each time, or reported after such an exception. `silent`: raise none.
        """
        if isinstance(in_block, asyncio.CancelledError):
            self._hasten()
        elif in_block is not None:
            self._abandon()
        if self._closing is None:
            self._closing = asyncio.create_task(end())
        end_error = await until_done(self._closing, self._hasten)
        error, task = self._error or end_error, asyncio.current_task()
        informed = in_block is not None or task in self._informed
        self._informed.add(task)
        if error is None or silent or error is in_block or (informed and isinstance(error, WormholeError)):
            return
        if in_block is None:
            raise error
        message = "`on_event` of a wormhole raised this error, and then the block of the wormhole raised another one"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def _abandon(self) -> None:
        """Wait for nothing of the peer."""
        self._abandoned = True
        self._changes.notify()

    def _hasten(self) -> None:
        """Nor much longer for the server: a task that waits for the end is cancelled."""
        self._abandon()
        asyncio.get_running_loop().call_later(CANCELLED_SECONDS, self._note_closed)

    def _note_closed(self) -> None:
        self._closed = True
        self._changes.notify()

    async def _wait_until_all_stored(self, *, patient: bool) -> None:
        """Wait until the server has what was sent to a peer. Fail if it does not answer."""
        if self._state.peer_versions is not None and self._state.mood is None:
            seconds = self._options.storing_seconds if patient and self._has_unstored else self._options.close_seconds
            await self._wait_while_answered(lambda: self._machine.all_stored or self._has_ended, seconds)
            if self._has_unstored and not self._machine.all_stored:
                self._error = self._error or ServerGoneError("the server has not stored all that was sent")

    @property
    def _has_unstored(self) -> bool:
        return bool(self._state.unsealed) or not all(own.stored for own in self._state.own.values())

    @property
    def _has_ended(self) -> bool:
        return self._closed or self._error is not None

    async def _close_mailbox(self, mood: str | None) -> None:
        """Close the mailbox, wait for that as long as the server answers, and end the connection."""
        self._machine.close(mood)
        self._driver.carry_out()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_seconds):
                    await self._driver.wait_until_saved()
            if not self._driver.ended:
                await self._wait_while_answered(lambda: self._closed, self._options.close_seconds)
        finally:
            await self._disconnect()

    async def _wait_while_answered(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until something is done, or until the server has not answered for so many seconds."""
        self._driver.resume()  # the server answers behind the messages that nobody reads
        self._driver.hurry()
        await self._changes.while_counting(lambda: self._machine.answers, done, seconds)

    async def _disconnect(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        self._error = self._error or self._driver.connect_error
        self._note_closed()

    @property
    def _state(self) -> WormholeState:
        return self._machine.state

    @property
    def _key(self) -> bytes:
        return bytes.fromhex(self._state.key or "")

    async def _run(self) -> None:
        try:
            await self._driver.run()
        except Exception as error:  # noqa: BLE001 - the methods that wait raise it
            self._error = self._error or error
        self._note_closed()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changes.notify()

    def _handle(self, event: Event | MessageReceived | NameplatesListed) -> None:
        if isinstance(event, MessageReceived):
            self._add_unread(event)
        elif isinstance(event, NameplatesListed):
            self._nameplates = event.nameplates
        else:
            if isinstance(event, Failed):
                self._error = self._error or event.error
            if self._on_event is not None:
                try:
                    self._on_event(event)
                except Exception as error:  # noqa: BLE001 - the methods that wait raise it
                    if isinstance(self._error, WormholeError | None):
                        error.__context__ = error.__context__ or self._error
                        self._error = error
                    self._stop()
        self._changes.notify()

    def _stop(self) -> None:
        """End, because the application's function for events has raised an error."""
        raise NotImplementedError

    def _add_unread(self, message: MessageReceived) -> None:
        """Add a message to the unread ones. If these are too many, stop reading; while closing, drop further ones."""
        if self._drops_messages:
            return
        self._unread.add(message)
        if self._unread.full:
            if self._closing is None:
                self._driver.pause()
            else:
                self._drops_messages = True

    async def _next_unread(self) -> MessageReceived:
        """Wait for the next message of the peer, and return it."""
        await self._wait_until(lambda: self._unread)
        message = self._unread.pop()
        if self._unread.has_room:
            self._driver.resume()
        return message

    async def _wait_for_peer(self) -> None:
        await self._wait_until(lambda: self._state.peer_versions is not None)

    def _is_stored(self, number: int) -> bool:
        own = self._state.own.get(str(number))
        return number < self._state.next_own - len(self._state.unsealed) and (own is None or own.stored)

    async def _wait_until_stored(self, number: int) -> None:
        await self._wait_until(lambda: self._is_stored(number))

    async def _wait_until_delivered(self, number: int) -> None:
        self._check_receipts_wanted()
        await self._wait_for_peer()
        if not self._state.peer_abilities.sends_receipts:
            raise NoReceiptsError("the peer's client sends no receipts: only `stored` can be known")
        await self._wait_until(lambda: self._state.acknowledged > number)

    def _check_receipts_wanted(self) -> None:
        if not self._state.abilities.wants_receipts:
            raise NoReceiptsError("this wormhole wants no receipts: create it with receipts=True")

    def _check_entered(self) -> None:
        if self._running is None:
            raise Misuse("a wormhole is used in its context: async with wormhole: …")

    def _check_open(self) -> None:
        if (error := self._error or self._machine.failure) is not None:
            self._informed.add(asyncio.current_task())
            raise error
        ends, mood = self._closed or self._closing is not None, self._state.mood
        if not ends and mood not in {None, "lonely"}:
            raise ClosedError(f"this wormhole has ended before ({mood}): use a new one, with a new code")
        if ends or mood is not None:
            if self._state.peer_versions is None:
                self._informed.add(asyncio.current_task())
                raise LonelyError(CLOSED_EARLY)
            raise ClosedError("the wormhole is closed")

    async def _wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is met. Raises the wormhole's error if it has failed first."""
        while not condition():
            self._check_open()
            self._check_entered()
            await self._changes.next(lambda: condition() or self._error or self._closed or self._closing)


# ── Wormholes without a journal ───────────────────────────────────────────────────────────────────


SILENCE_SECONDS: Final = 60.0
"""Seconds without an answer of the peer after which `PeerSilent` is reported. A person who decides, and a client that
connects again to the server, mostly take less."""


class Wormhole(BaseWormhole):
    """A wormhole that closes when its context is left. Nothing of it outlives the process.

    Its context is entered when the server has sent its welcome. A server that asks to try again later is tried again,
    within `ConnectionOptions.connect_seconds`. If the wormhole fails, entering raises the error, and leaves nothing
    open: `ServerGoneError` if the server cannot be reached, or does not answer in time, `WelcomeError` or
    `PermissionNeededError` if it refuses this client, `ServerError` if it breaks the protocol. With `wait=True`
    entering does not wait, and a first connection that fails is tried again, whatever the reason. Then only the event
    `Reconnecting` says that the URL is wrong.

    Leaving the context calls `close`, with its errors. After an exception in the context, leaving raises no error of
    the wormhole, and the mood is `errory`, or `lonely` if no peer came. If `on_event` raised another exception, the
    event loop's exception handler gets it.
    """

    timing: TimingLog | None = None
    """The timing log that `create` was given."""
    silence_seconds: float = SILENCE_SECONDS
    """Seconds without an answer of the peer after which `PeerSilent` is reported."""
    _reason: SentMessage | None = None
    """Tells the peer why there will be no transfer."""
    _key_timer: asyncio.TimerHandle | None = None
    _silence_matters = True
    _welcome_timer: asyncio.TimerHandle | None = None
    _waits = _enters_at_once = False

    @classmethod
    def create(
        cls,
        app_id: str,
        *,
        server: str = DEFAULT_SERVER,
        versions: dict[str, Any] | None = None,
        receipts: bool = False,
        seeds: bool = False,
        proxy: str | None = None,
        ssl: tls.SSLContext | None = None,
        max_work_bits: int = DEFAULT_MAX_BITS,
        on_event: Callable[[Event], None] | None = None,
        timing: TimingLog | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        wait: bool = False,
        options: ConnectionOptions = DEFAULT_OPTIONS,
    ) -> Self:
        """Return a new wormhole, which connects when its context is entered. Call it while an event loop runs.

        Args:
            app_id: names the application, like `example.com/chat`. Only programs with the same one can meet.
            server: the URL of the mailbox server, `ws://` or `wss://` with its path, which is mostly `/v1`.
            versions: a dict that JSON can express; the peer's application can read it with `BaseWormhole.versions`.
            receipts: keep each message until the peer's application has processed it (`SentMessage.delivered`).
            seeds: offer the peer a seed, so that the next wormhole needs no code (`BaseWormhole.seed`).
            proxy: `socks5://`, `socks4://`, `http://` or `https://`, with `USER:PASSWORD@` if needed, a host and a
                port.
            ssl: how the server of a `wss://` URL proves who it is. By default, with the system's certificates.
            max_work_bits: the most work that is done if the server demands hashcash. Each bit doubles it.
            on_event: called with each event (`Event`), on the event loop. If it raises, the wormhole is closed, and
                every other call raises the error.
            timing: logs what is sent and received, and when.
            silence_seconds: seconds without an answer of the peer after which `PeerSilent` is reported: while the key
                is agreed, and while a text, a file or a directory is sent or received.
            wait: enter the context at once, and keep trying if the server cannot be reached at first.
            options: times, delays, sizes, the logger, and what the program calls itself.

        Raises:
            Misuse: an argument cannot be used.

        """
        check_seconds("silence_seconds", silence_seconds)
        check_flags(receipts=receipts, seeds=seeds, wait=wait)
        dice = SystemDice()
        state = new_state(app_id, versions or {}, dice.draw(NEW_BYTES), wants_receipts=receipts, seeds=seeds)
        endpoint = ServerEndpoint(server, proxy, ssl, max_work_bits, options)
        wormhole = cls(state, endpoint, dice, on_event=on_event, waits=wait)
        wormhole.timing = wormhole._driver.timing = timing
        wormhole.silence_seconds = silence_seconds
        wormhole._waits = wormhole._enters_at_once = wait
        return wormhole

    def _entered_at_once(self) -> Self:
        """Return this wormhole. Its context is entered at once, and fails later if the server cannot be reached."""
        self._enters_at_once = True
        return self

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if not self._waits:
            loop = asyncio.get_running_loop()
            self._welcome_timer = loop.call_later(self._options.connect_seconds, self._check_welcome)
        if not self._enters_at_once:
            try:
                await self._wait_until(lambda: self._machine.answers)
                self._check_open()
            except BaseException as error:
                await self.__aexit__(type(error), error, None)
                raise
        return self

    def _check_welcome(self) -> None:
        """Fail, unless the server has sent its welcome."""
        if not self._machine.answers:
            self._fail(self._driver.no_welcome_error())

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        failed = error is not None and self._state.peer_versions is not None
        await self._end(lambda: self._close("errory" if failed else None), error)

    async def close(self, mood: Mood | None = None, *, abandon: bool = False) -> None:
        """Wait until everything sent is stored, then release the nameplate and close the mailbox.

        With `receipts=True` it waits for all receipts, until none has come for `ConnectionOptions.receipt_seconds`.
        Clients of other projects send none. If the server does not answer, this takes about twice `close_seconds`, or
        `storing_seconds` more if a message is not stored and the mood is `happy`. After a cancellation it takes 2 s
        at most, and raises the cancellation.

        Args:
            mood: how it went, for the server's records. By default `happy`, `lonely` if no peer came, or `errory` if
                receipts are missing.
            abandon: raise no error, also when this task leaves the context, and wait for no receipts. What was sent
                may be lost. An error of `on_event` is raised there.

        Raises:
            Misuse: it is another mood.
            LonelyError: no peer came, there was a code or a message, and the mood is not one of a failure.
            UndeliveredError: receipts are missing, and the mood is not one of a failure.
            WormholeError: the wormhole failed, and no other call of this task has raised the error.
            ServerGoneError: the server has not stored all that was sent, or has not said whether a peer came.

        """
        check_mood(mood)
        check_flags(abandon=abandon)
        if abandon:
            self._abandon()
        await self._end(lambda: self._close(mood), silent=abandon)

    async def _close(self, mood: Mood | None) -> WormholeError | None:
        # It waits for four things, in this order. If one does not come, `close` raises an error:
        #   1. the news whether a peer came   LonelyError if none came, ServerGoneError if the server does not say it
        #   2. the storage of all messages    ServerGoneError
        #   3. the peer's receipts            UndeliveredError
        #   4. the end of the mailbox         nothing: the server prunes it
        # It does not wait for 1 and 3 with the mood of a failure, with `abandon`, and after an exception or a
        # cancellation. If the wormhole fails, it waits for 4 only, and `close` raises why. Without a code no peer can
        # come: then it is lonely if it has a message to send.
        if self._running is None:
            return None
        state, options, success = self._state, self._options, mood in {None, "happy"}
        end_error: WormholeError | None = None
        end_mood: str | None = mood
        if state.nameplate_status is NameplateStatus.NONE:
            if state.next_own:
                end_error = LonelyError.without_code(state.next_own)
        elif success:
            await self._wait_while_answered(
                lambda: self._knows_whether_peer_came or self._has_ended or self._abandoned, options.close_seconds
            )
            if state.peer_versions is None:
                if self._knows_whether_peer_came or self._abandoned:
                    end_error = LonelyError(CLOSED_EARLY)
                else:
                    end_error = ServerGoneError("the server has not said whether a peer came")
        await self._wait_until_all_stored(patient=success and not self._abandoned)
        if state.abilities.wants_receipts and state.peer_abilities.sends_receipts:
            if success and not self._abandoned:
                await self._changes.while_counting(
                    lambda: state.acknowledged,
                    lambda: state.acknowledged == state.next_own or self._has_ended or self._abandoned,
                    options.receipt_seconds,
                )
                end_mood = mood or (UndeliveredError.mood if state.acknowledged < state.next_own else None)
            if count := state.next_own - state.acknowledged:
                end_error = UndeliveredError.of(count)
        await self._close_mailbox(end_mood)
        return end_error if success else None

    @property
    def _knows_whether_peer_came(self) -> bool:
        """Whether the server has sent all that it has, and the version of a peer that came, which shows its code."""
        if self._state.key is not None:
            return self._state.peer_versions is not None
        connection = self._machine.connection
        return connection is not None and connection.replayed

    def _stop(self) -> None:
        self._machine.close(WormholeError.mood)

    def _handle(self, event: Event | MessageReceived | NameplatesListed) -> None:
        if isinstance(event, PeerSilent) and not self._silence_matters:
            return  # of a transfer that goes on without the server
        super()._handle(event)
        if isinstance(event, KeyAgreed):
            self._key_timer = self._report_silence("key")
        elif isinstance(event, PeerConfirmed | Failed | Closed) and self._key_timer is not None:
            self._key_timer.cancel()
        if isinstance(event, Closed):
            self._silence_matters = False

    async def _disconnect(self) -> None:
        self._silence_matters = False
        for timer in (self._welcome_timer, self._key_timer):
            if timer is not None:
                timer.cancel()
        await super()._disconnect()

    def _report_silence(self, awaited: Awaited, ends_after: float | None = None) -> asyncio.TimerHandle:
        """Report, after `silence_seconds`, that the peer has not answered."""
        event = PeerSilent(self.silence_seconds, awaited, ends_after)
        return asyncio.get_running_loop().call_later(self.silence_seconds, self._handle, event)

    @contextmanager
    def _expecting(self, awaited: Awaited, ends_after: float | None = None) -> Iterator[None]:
        """Report `PeerSilent` if the block, which waits for the peer, takes `silence_seconds`."""
        timer = self._report_silence(awaited, ends_after)
        try:
            yield
        finally:
            timer.cancel()

    async def receive(self) -> bytes:
        """Wait for the peer's next message, and return it. Messages come in the order of sending, each once.

        Messages that came before the wormhole was closed or failed are returned first, then the error is raised. When
        this method returns a message, the peer gets a receipt for it.
        """
        message = await self._next_unread()
        self._machine.processed(message.number)
        self._driver.carry_out()
        return message.plaintext

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the peer's messages, until another task closes this wormhole.

        The server does not report that the peer has closed: agree on a last message.
        """
        with suppress(ClosedError):
            while True:
                yield await self.receive()
