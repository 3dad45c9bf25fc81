"""Converts authentication and access rules of a mosquitto.conf to `[[authenticator]]` tables and `[access]`.

Owns mosquitto's rule of anonymous clients, for the whole broker or, with `per_listener_settings`, for each listener.
Promises: where mosquitto admits no client, or asks a plug-in, the result admits none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from canopy_mqtt.convert.draft import Draft, Kind
from canopy_mqtt.convert.listeners import ListenerOptions
from canopy_mqtt.convert.options import OF_PLUGINS, canonical, yes_or_no
from canopy_mqtt.convert.source import Line

PLUGINS: Final = frozenset({"global_plugin", "plugin", "plugin_load"})

OWN_PLUGINS: Final = {"mosquitto_password_file": "password_file", "mosquitto_acl_file": "acl_file"}
"""The plug-ins of mosquitto 2.1 for files, and the option that each stands for: `plugin_opt_…` names its file."""

NOBODY: Final = "nobody"
TRUST: Final = "trust"

TYPES: Final = {
    NOBODY: ("reject", "mosquitto lets nobody in without a password_file, a certificate, or allow_anonymous true"),
    TRUST: ("trust", "mosquitto takes any user name there, without a check"),
}
"""Authenticators that come from no line: their type, and the reason for them."""

SOURCE: Final = "mosquitto withholds a retained message whose publisher may not write there any more"


class ListenerAccess:
    """The options about access of one listener, or of all."""

    def __init__(self) -> None:
        self.password_file: Line | None = None
        self.acl_file: Line | None = None
        self.anonymous: Line | None = None
        self.plugin: Line | None = None
        """A plug-in that cannot be converted."""


class AccessOptions:
    """Collects the options about access, line by line."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.per_listener = False
        self._shared = ListenerAccess()
        # The default listener's under None.
        self._own: dict[ListenerOptions | None, ListenerAccess] = {}
        self._plugin: str | None = None
        self._source: Line | None = None

    def take(self, line: Line, listener: ListenerOptions | None) -> None:
        """Take an option; `listener`: the listener above it, None before the first."""
        draft, option = self._draft, canonical(line.option)
        if option == "per_listener_settings":
            self._take_scope(line)
            return
        access = self._shared
        if self.per_listener and option not in ("global_plugin", "plugin_load"):
            access = self._own.setdefault(listener, ListenerAccess())
        if option in ("password_file", "acl_file") and not line.value:
            option = "plugin"  # no client is admitted by it either
        if option in PLUGINS:
            self._plugin = OWN_PLUGINS.get(line.value.rpartition("/")[2].partition(".")[0])
            if self._plugin is None:
                access.plugin = line
                text = (
                    "there are no plug-ins of mosquitto here; nobody comes in by it. docs/security.md has what there is"
                )
                draft.note(line, Kind.GUARD, text)
            else:
                draft.note(line, Kind.NOTHING, f"Canopy reads the file of plugin_opt_{self._plugin} by itself")
        elif option.startswith(OF_PLUGINS):
            file = option.removeprefix("plugin_opt_").removeprefix("auth_opt_")
            if self._plugin is not None and file in ("password_file", "acl_file"):
                setattr(access, file, line)
            else:
                draft.note(line, Kind.MISSING, "it is an option of a plug-in")
        elif option == "allow_anonymous":
            access.anonymous = line
        elif option == "password_file":
            access.password_file = line
        elif option == "acl_file":
            access.acl_file = line
        else:
            self._source = line

    def opens_default(self) -> bool:
        """True if mosquitto opens its default listener because of the options above the first `listener`."""
        own = self._own.get(None)
        return own is not None and (own.password_file or own.plugin) is not None

    def convert(self, listeners: list[ListenerOptions], local_only: bool) -> None:
        """Write authenticators and access rules, when all listeners are known."""
        asked = {listener: self._asked(listener, local_only) for listener in listeners}
        checked = self._write_access(listeners)
        draft = self._draft
        said = list(dict.fromkeys(each.line for each in asked.values() if each.line is not None))
        if all(listener.off for listener in listeners):
            # Without a table Canopy listens on 127.0.0.1, by its default.
            _write_authenticator(draft, NOBODY, NOBODY, None)
            draft.set("mqtt.allow_anonymous", False, "no listener is left")
            return
        # With rules an authenticator vouches for the names: of a publisher that is gone its name is known then.
        if not checked and all(TRUST in each.names and each.anonymous for each in asked.values()):
            draft.set("mqtt.allow_anonymous", True, *said)
            return
        kinds: dict[str, tuple[str, Line | None]] = {}
        for each in asked.values():
            for name, (kind, line) in each.names.items():
                kinds.setdefault(name, (kind, line))
        for name, (kind, line) in kinds.items():
            _write_authenticator(draft, name, kind, line)
        some = any(each.anonymous for each in asked.values())
        if not some:
            why: list[Line | str] = [*said] or ["as in mosquitto, unless allow_anonymous is true"]
            draft.set("mqtt.allow_anonymous", False, *why)
        for listener, each in asked.items():
            if len(each.names) < len(kinds):
                listener.table.set("authenticators", list(each.names))
            if some:
                listener.table.set("allow_anonymous", each.anonymous, *([] if each.line is None else [each.line]))

    def _take_scope(self, line: Line) -> None:
        try:
            self.per_listener = yes_or_no(line.value) or self.per_listener
        except ValueError as error:
            # As in the stricter case: what stands below one listener opens no other.
            self.per_listener = True
            self._draft.note(line, Kind.GUARD, f"the value has to be {error}; true is assumed")
        else:
            self._draft.note(line, Kind.NOTHING, "each [[listener]] names its authenticators")

    def _of(self, listener: ListenerOptions) -> ListenerAccess:
        if not self.per_listener:
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
        if access.plugin is not None:
            names[NOBODY] = (NOBODY, None)
        elif listener.is_on("use_identity_as_username"):
            names["certificate"] = ("cn", listener.options["use_identity_as_username"])
        elif listener.is_on("use_subject_as_username"):
            names["certificate-subject"] = ("subject", listener.options["use_subject_as_username"])
        elif access.password_file is not None:
            file = access.password_file
            names[self._name_of(file)] = ("password-file", file)
        elif anonymous:
            names[TRUST] = (TRUST, line)
        else:
            names[NOBODY] = (NOBODY, None)
        # A plug-in may have refused them; and mosquitto refuses clients without a certificate or name that is needed as
        # user or identifier, whatever allow_anonymous says.
        if any(kind in (NOBODY, "cn", "subject") for kind, _ in names.values()):
            anonymous = False
        return _Asked(names, anonymous and not listener.is_on("use_username_as_clientid"), line)

    def _name_of(self, file: Line) -> str:
        """Return a name for the password file: numbered if listeners have different ones."""
        files: list[str] = []
        for access in (self._shared, *self._own.values()):
            if access.password_file is not None and access.password_file.value not in files:
                files.append(access.password_file.value)
        at = files.index(file.value)
        return "password-file" if at == 0 else f"password-file-{at + 1}"

    def _write_access(self, listeners: list[ListenerOptions]) -> bool:
        """Write the rules. Returns True if the publishers of retained messages are checked."""
        draft = self._draft
        accesses = [self._of(listener) for listener in listeners]
        files = {access.acl_file.value: access.acl_file for access in accesses if access.acl_file is not None}
        everywhere = len(files) == 1 and all(access.acl_file is not None for access in accesses)
        checked = self._check_source(next(iter(files.values()), None), everywhere)
        plugin = next((access.plugin for access in accesses if access.plugin is not None), None)
        if len(files) == 1:
            draft.set("access.acl_file", *files, *(access.acl_file for access in accesses if access.acl_file))
            # Of a plug-in's rules nothing is known: the file's hold there.
            free = [
                listener
                for listener, access in zip(listeners, accesses, strict=True)
                if access.acl_file is None and access.plugin is None
            ]
            for at, listener in enumerate(free, start=1):
                listener.table.set("name", f"without-rules-{at}")
            if free:
                table = draft.table("rule", "mosquitto looks at acl_file at the other listeners alone")
                table.set("listener", [f"without-rules-{at}" for at, _ in enumerate(free, start=1)])
                table.set("filters", ["#", "$SYS/#"])
        elif files:
            for line in files.values():
                text = "one file holds for all listeners here; [[rule]] tables with listener can tell them apart"
                draft.note(line, Kind.GUARD, text)
            draft.set("access.default", "deny", "nobody may do anything until rules say so")
        elif plugin is not None:
            draft.set("access.default", "deny", plugin, "the plug-in may have said who may do what: write rules")
        return checked

    def _check_source(self, rules: Line | None, everywhere: bool) -> bool:
        """Note `check_retain_source`, which mosquitto switches on by default. `rules`: the first line with rules, which
        apply `everywhere`, or not to all listeners.
        """
        line = self._source
        try:
            on = line is None or yes_or_no(line.value)
        except ValueError:
            on = True
        if rules is not None and on and not everywhere:
            # Canopy does not know the listener of a publisher that is gone.
            self._draft.note(
                line or rules, Kind.GUARD, f"{SOURCE}; Canopy does so only where the same rules hold for all listeners"
            )
        elif rules is not None and on:
            self._draft.set("retained.check_publisher", True, line or rules, SOURCE)
            return True
        if line is not None:
            self._draft.note(line, Kind.NOTHING, "it asks for nothing")
        return False


class _Asked(NamedTuple):
    """The authentication of a listener's clients."""

    names: dict[str, tuple[str, Line | None]]
    """The authenticators by name, with their type and line."""
    anonymous: bool
    """True if clients without a user name are admitted."""
    line: Line | None
    """The line that decides this."""


def _write_authenticator(draft: Draft, name: str, kind: str, line: Line | None) -> None:
    table = draft.table("authenticator", *([] if line is None else [line]))
    if kind in TYPES:
        table.why.append(TYPES[kind][1])
    if (name != kind and name != "certificate") or kind == NOBODY:
        table.set("name", name)
    if kind == "password-file" and line is not None:
        table.set("type", "password-file")
        table.set("path", line.value)
    elif kind in TYPES:
        table.set("type", TYPES[kind][0])
    else:
        table.set("type", "certificate")
        table.set("user", kind)
