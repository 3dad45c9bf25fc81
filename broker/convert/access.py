"""Who comes in and who may do what, from a mosquitto.conf: `[[authenticator]]` tables and `[access]`.

Owns mosquitto's rule of anonymous clients, for the whole broker or, with `per_listener_settings`, for each listener.
Promises: where mosquitto lets nobody in, or asked a plug-in, nobody comes in.
"""

from __future__ import annotations

from typing import Final

from broker.convert.draft import Draft, Kind
from broker.convert.listeners import ListenerOptions
from broker.convert.options import OF_PLUGINS, yes_or_no
from broker.convert.source import Line

PLUGINS: Final = frozenset({"auth_plugin", "global_plugin", "plugin", "plugin_load"})

OWN_PLUGINS: Final = {"password_file": "password_file", "acl_file": "acl_file"}
"""What is in the name of mosquitto 2.1's own plug-ins → the option that it stands for; `plugin_opt_…` has its file."""

NOBODY: Final = "nobody"


class ListenerAccess:
    """What holds at one listener, or at all of them."""

    def __init__(self) -> None:
        self.password_file: Line | None = None
        self.acl_file: Line | None = None
        self.anonymous: Line | None = None
        self.plugin: Line | None = None
        """One that cannot be converted."""


class AccessOptions:
    """The options about access, line by line."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._per_listener = False
        self._shared = ListenerAccess()
        # The default listener's under None.
        self._own: dict[ListenerOptions | None, ListenerAccess] = {}
        self._plugin: str | None = None

    def take(self, line: Line, listener: ListenerOptions | None) -> None:
        """Another option; `listener`: the listener that it stands below, None before the first."""
        draft, option = self._draft, line.option
        if option == "per_listener_settings":
            try:
                self._per_listener = yes_or_no(line.value)
            except ValueError as error:
                # As in the stricter case: what stands below one listener opens no other.
                self._per_listener = True
                draft.note(line, Kind.GUARD, f"the value has to be {error}; true is assumed")
            else:
                draft.note(line, Kind.INSTEAD, "each [[listener]] names its authenticators")
            return
        access = self._shared
        if self._per_listener and option not in ("global_plugin", "plugin_load"):
            access = self._own.setdefault(listener, ListenerAccess())
        if option in ("password_file", "acl_file") and not line.value:
            option = "plugin"  # which nobody can come in by either
        if option in PLUGINS:
            name = line.value.rpartition("/")[2]
            self._plugin = next((known for known in OWN_PLUGINS if known in name), None)
            if self._plugin is None:
                access.plugin = line
                text = (
                    "there are no plug-ins of mosquitto here; nobody comes in by it. docs/security.md has what there is"
                )
                draft.note(line, Kind.GUARD, text)
        elif option.startswith(OF_PLUGINS):
            file = option.removeprefix("plugin_opt_").removeprefix("auth_opt_")
            if self._plugin is not None and file in OWN_PLUGINS:
                setattr(access, file, line)
            else:
                draft.note(line, Kind.MISSING, "it is an option of a plug-in")
        elif option == "plugin_use":
            draft.note(line, Kind.INSTEAD, "authenticators of a [[listener]] names those that are asked there")
        elif option == "allow_anonymous":
            access.anonymous = line
        elif option == "password_file":
            access.password_file = line
        elif option == "acl_file":
            access.acl_file = line
        else:
            draft.note(line, Kind.MISSING, "there is no TLS with pre-shared keys; listeners with psk_hint are off")

    def convert(self, listeners: list[ListenerOptions], local_only: bool) -> None:
        """Write authenticators and access, now that all listeners are there."""
        asked = {listener: self._asked(listener, local_only) for listener in listeners}
        self._write_access(listeners)
        draft = self._draft
        said = [each.line for each in asked.values() if each.line is not None]
        if all(each.open for each in asked.values()):
            draft.set("mqtt.allow_anonymous", True, *dict.fromkeys(said))
            return
        written: dict[str, bool] = {}
        for each in asked.values():
            for name, (kind, line) in each.names.items():
                if name not in written:
                    written[name] = True
                    _write_authenticator(draft, name, kind, line)
        if any(each.anonymous for each in asked.values()):
            table = draft.table("authenticator", *dict.fromkeys(said))
            table.set("type", "anonymous")
            written["anonymous"] = True
        else:
            why: list[Line | str] = [*dict.fromkeys(said)]
            draft.set("mqtt.allow_anonymous", False, *(why or ["as in mosquitto, unless allow_anonymous is true"]))
        for listener, each in asked.items():
            names = [*each.names, *(["anonymous"] if each.anonymous else [])]
            if len(names) < len(written):
                listener.table.set("authenticators", names)
            if not each.anonymous and "anonymous" in written:
                listener.table.set("allow_anonymous", False, *([] if each.line is None else [each.line]))
            if each.open:
                listener.table.why.append(
                    "with a user name clients came in unchecked here; now only those without one do"
                )

    def _of(self, listener: ListenerOptions) -> ListenerAccess:
        if not self._per_listener:
            return self._shared
        access = self._own.get(listener if listener.begun is not None else None, ListenerAccess())
        access.plugin = access.plugin or self._shared.plugin
        return access

    def _asked(self, listener: ListenerOptions, local_only: bool) -> _Asked:
        draft, access = self._draft, self._of(listener)
        line = listener.options.get("listener_allow_anonymous", access.anonymous)
        anonymous = local_only
        if line is not None:
            try:
                anonymous = yes_or_no(line.value)
            except ValueError as error:
                draft.note(line, Kind.GUARD, f"the value has to be {error}; clients without a user name are refused")
                anonymous = False
        names: dict[str, tuple[str, Line | None]] = {}
        if listener.is_on("use_identity_as_username", draft):
            line = listener.options["use_identity_as_username"]
            names["certificate"] = ("cn", line)
        elif listener.is_on("use_subject_as_username", draft):
            line = listener.options["use_subject_as_username"]
            names["certificate-subject"] = ("subject", line)
        elif access.password_file is not None:
            file = access.password_file
            names[self._name_of(file)] = ("password-file", file)
        if any(kind in ("cn", "subject") for kind, _ in names.values()):
            # mosquitto refuses whoever shows no certificate there, whatever allow_anonymous says.
            anonymous = False
        unchecked = not names and access.plugin is None and anonymous
        if not names and not unchecked:
            names[NOBODY] = (NOBODY, None)
        return _Asked(names, anonymous and access.plugin is None, unchecked, line)

    def _name_of(self, file: Line) -> str:
        """A name for the password file: numbered, where listeners have different ones."""
        files: list[str] = []
        for access in (self._shared, *self._own.values()):
            if access.password_file is not None and access.password_file.value not in files:
                files.append(access.password_file.value)
        at = files.index(file.value)
        return "password-file" if at == 0 else f"password-file-{at + 1}"

    def _write_access(self, listeners: list[ListenerOptions]) -> None:
        draft = self._draft
        accesses = [self._of(listener) for listener in listeners]
        files = {access.acl_file.value: access.acl_file for access in accesses if access.acl_file is not None}
        plugin = next((access.plugin for access in accesses if access.plugin is not None), None)
        if len(files) == 1 and all(access.acl_file is not None for access in accesses):
            (line,) = files.values()
            draft.set("access.acl_file", line.value, line)
        elif files:
            for line in files.values():
                text = "one file holds for all listeners here; [[rule]] tables with listener can tell them apart"
                draft.note(line, Kind.GUARD, text)
            draft.set("access.default", "deny", "nobody may do anything until rules say so")
        elif plugin is not None:
            draft.set("access.default", "deny", plugin, "the plug-in may have said who may do what: write rules")


class _Asked:
    """Who is asked about the clients of a listener: authenticators by name, with what they are and their line."""

    def __init__(
        self, names: dict[str, tuple[str, Line | None]], anonymous: bool, unchecked: bool, line: Line | None
    ) -> None:
        self.names = names
        self.anonymous = anonymous
        self.open = unchecked
        """Everybody comes in, under any name."""
        self.line = line
        """What says whether clients may come without a user name."""


def _write_authenticator(draft: Draft, name: str, kind: str, line: Line | None) -> None:
    table = draft.table("authenticator", *([] if line is None else [line]))
    if name not in (kind, "certificate"):
        table.set("name", name)
    if kind == "password-file" and line is not None:
        table.set("type", "password-file")
        table.set("path", line.value)
        return
    if kind == NOBODY:
        table.why.append("mosquitto lets nobody in without a password_file, a certificate, or allow_anonymous true:")
        table.why.append("this authenticator knows clients with a certificate alone")
        kind = "cn"
        table.set("name", NOBODY)
    table.set("type", "certificate")
    table.set("user", kind)
