"""Faults seeded into commit.lua, to see whether the machine would notice them.

Each is one change of its text, of the kind that a hurried edit makes.
"""

from dataclasses import dataclass

from blackboard.engines.redis.lua import COMMIT_PARTS, Script, make_script, script_text


@dataclass(frozen=True, slots=True)
class Mutant:
    """commit.lua, whole, with `old` (which must occur exactly once) replaced by `new`."""

    name: str
    old: str
    new: str
    walk: int = 0
    """The first walk that was seen to find it."""

    def script(self) -> Script:
        """The faulty script. AssertionError if the text has moved on without this mutant."""
        text = script_text(*COMMIT_PARTS)
        assert text.count(self.old) == 1, f"{self.name}: {text.count(self.old)} places to change"
        return make_script(text.replace(self.old, self.new))


MUTANTS = (
    # --- fences and leases ------------------------------------------------------------------------
    Mutant("an older fence passes", "lease[FENCE] ~= fence or", "lease[FENCE] < fence or"),
    Mutant("a newer fence passes", "lease[FENCE] ~= fence or", "lease[FENCE] > fence or"),
    Mutant("anybody's fence passes", " or lease[HOLDER] ~= holder then", " then"),
    Mutant(
        "fences are not checked",
        "check_fence(lease_of(key), key, c.fences[i + 1], c.fences[i + 2])",
        "",
    ),
    Mutant("a held lease is granted", "held and held[UNTIL] <= time_ms", "held"),
    Mutant("a lease never runs out", "held and held[UNTIL] <= time_ms", "false"),
    Mutant("a lease runs out late", "held[UNTIL] <= time_ms", "held[UNTIL] < time_ms", walk=7),
    Mutant(
        "a held lease expires",
        "if held[UNTIL] > time_ms then refuse_held(key, held) end",
        "",
        walk=7,
    ),
    Mutant("who died is granted it", "if lease[at + 2] > time_ms then", "if true then", walk=40),
    Mutant(
        "the last in the queue is next",
        "for at = WAITERS, #lease, 3 do\n    if lease[at + 2]",
        "for at = #lease - 2, WAITERS, -3 do\n    if lease[at + 2]",
        walk=41,
    ),
    Mutant(
        "the queue is forgotten",
        "for i = at + 3, #lease do after",
        "for i = at + 9, 0 do after",
        walk=41,
    ),
    Mutant("a second request waits twice", "wait == 0 or is_known", "wait == 0"),
    Mutant("everybody waits", "wait == 0 or is_known", "is_known"),
    Mutant("the queue is endless", "waiting >= LIMIT.LEASE_WAITERS_MAX", "waiting > 1e6", walk=24),
    Mutant(
        "the next one keeps the fence",
        "{lease[at], revision + 1, time_ms + lease[at + 1], lease[at + 1]}",
        "{lease[at], lease[FENCE], time_ms + lease[at + 1], lease[at + 1]}",
    ),
    Mutant("a ticket is not prolonged", "ends, lasts = at + 2, at + 1", "", walk=18),
    Mutant("a renewal makes a revision", "  if tells_nothing(c) then", "  if false then"),
    Mutant("what removed something is not told", "if draft.count > 0 then return false end", ""),
    Mutant("a retry that removes nothing tells nothing", "(c.since >= 0 or not", "(not"),
    Mutant("the end of a lane is not told", " and sub(op[2], -12) ~= '/~superseded'", "", walk=8),
    Mutant(
        "a renewal moves no deadline",
        "if tells_nothing(c) then\n    merge_leases()",
        "if tells_nothing(c) then",
        walk=7,
    ),
    Mutant(
        "another time to live makes no revision",
        "if not is_deadline and before[i]",
        "if i < TTL and before[i]",
        walk=7,
    ),
    Mutant("a restore of nothing makes no revision", "return not c.begins", "return true"),
    Mutant("a released lease stays", "call('HDEL', LEASES, key)", "", walk=5),
    Mutant(
        "leases are not counted",
        "if count > LIMIT.LEASES_MAX then",
        "if false then",
        walk=58,
    ),
    Mutant(
        "no room is kept for identities",
        "at_most('LEASES_ORDINARY_MAX', count - held(''), key)",
        "",
        walk=35,
    ),
    Mutant("identities are ordinary leases", "count - held(''), key)", "count, key)"),
    Mutant(
        "an account takes every lease",
        "if count > LIMIT.LEASES_PER_ACCOUNT_MAX then",
        "if false then",
    ),
    Mutant(
        "an account fills a queue",
        "if waiting > LIMIT.LEASE_WAITERS_PER_ACCOUNT_MAX then",
        "if false then",
        walk=44,
    ),
    Mutant(
        "a lease that is passed on is the passer's",
        "by[holder] = known[holder] or account",
        "by[holder] = account",
        walk=27,
    ),
    Mutant(
        "a restore leaves leases counted",
        "counts[name], fresh_usage['h:' .. name] = 0, false",
        "counts[name] = 0",
        walk=104,
    ),
    Mutant(
        "leases of accounts are not counted",
        "fresh_usage['h:' .. name] = counts[name] > 0",
        "local _ = counts[name] > 0",
    ),
    # --- conditions -------------------------------------------------------------------------------
    Mutant("a stale write passes", "actual ~= expected and", "actual < expected and"),
    Mutant(
        "a write from the future passes", "actual ~= expected and", "actual > expected and", walk=5
    ),
    Mutant("presence is not enough", "not (live and expected == -1)", "true", walk=5),
    Mutant("prefixes ignore removals", "ipairs({living, removed})", "ipairs({living})", walk=8),
    Mutant("prefixes ignore what lives", "ipairs({living, removed})", "ipairs({removed})"),
    Mutant("the compacted past counts as unchanged", "since < oldest - 1", "false", walk=13),
    Mutant("the future counts as unchanged", "since > revision", "false", walk=7),
    Mutant(
        "a tombstone has no author", "0, author_of(raw), at, revision", "0, false, at, revision"
    ),
    # --- exactly once -----------------------------------------------------------------------------
    Mutant("a duplicate is applied again", "if c.step == step then", "if false then"),
    Mutant("an older step is applied", "if c.step < step then", "if false then"),
    Mutant(
        "an answer has the wrong step", "overwritten, c.step, #c", "overwritten, c.step + 1, #c"
    ),
    Mutant("an answer loses its results", "sub(answer, 34 + size)}", "cmsgpack.pack(1)}"),
    Mutant("a pushed out answer is forgotten", "c.incarnation and older or at", "nil or 0"),
    Mutant("a lost answer is not noticed", "overwritten > c.since", "false", walk=47),
    Mutant("the epoch is not checked", "if c.epoch ~= epoch_id then", "if false then"),
    Mutant(
        "a late first attempt is applied",
        "elseif c.known >= 0 and overwritten > c.known",
        "elseif false",
    ),
    Mutant("every first attempt is late", "c.known >= 0 and overwritten > c.known", "c.known >= 0"),
    # --- revocations ------------------------------------------------------------------------------
    Mutant(
        "a late commit under a revoked token passes",
        "tonumber(access) > tonumber(ARGV[3])",
        "false",
    ),
    Mutant("a board that nobody told lets everything pass", "not access or", "access and"),
    Mutant("what is just as new is late", "> tonumber(ARGV[3])", ">= tonumber(ARGV[3])"),
    # --- restores ---------------------------------------------------------------------------------
    Mutant("a restore ignores the head", "if begins[5] ~= revision + 1 then", "if false then"),
    Mutant(
        "a restore may be of any epoch",
        "begins[1] == cmsgpack.unpack(epoch)[1] + 1",
        "true",
        walk=59,
    ),
    Mutant("any cause restores", "and begins[3] == 'restore'", "", walk=7),
    Mutant("a restore comes from its future", "begins[4] < begins[5]", "true", walk=44),
    Mutant("a restore does anything", "'bBd', c.ops", "'bBdpPaAigxnre', c.ops", walk=20),
    Mutant("anybody puts back", "    if not c.begins then refuse('put_back') end\n", "", walk=16),
    Mutant("what came back never expires", "op[4] ~= NO_LIMIT and op[4] or nil", "nil", walk=15),
    Mutant("what came back is not counted", "    count_item(path, op[5])\n", "", walk=32),
    Mutant("a counter falls", "math.max(index, item + 1)", "item + 1", walk=753),
    Mutant("leases survive a restore", "  call('DEL', LEASES)\n", "", walk=35),
    Mutant(
        "a batch remembers voided leases",
        "  for key in pairs(leases) do leases[key] = false end\n",
        "",
        walk=35,
    ),
    Mutant(
        "the old epoch goes on",
        "epoch_id, epoch = begins[2], cmsgpack",
        "_, epoch = begins[2], cmsgpack",
    ),
    Mutant("the new epoch is forgotten", "fresh_usage.epoch, fresh_usage.e,", "_, _,"),
    Mutant(
        "a restore needs quota",
        "if not c.begins then check_quotas(sums, c.account) end",
        "check_quotas(sums, c.account)",
        walk=93,
    ),
    Mutant(
        "a restore is limited as a commit",
        "if c.begins then\n    at_most('RESTORE_CHANGES_MAX'",
        "if c.begins then\n    at_most('OPERATIONS_MAX'",
        walk=28,
    ),
    # --- barriers ---------------------------------------------------------------------------------
    Mutant(
        "barriers are not checked",
        "elseif entries[c.barrier] or entries[c.cut] then check_barrier(c) end",
        "end",
    ),
    Mutant("an agent that has delivered is free", "or asked_at(entries[c.cut])", "", walk=12),
    Mutant(
        "a barrier outlives its time",
        "if expires_at_ms == 0 or expires_at_ms > time_ms then return asked end",
        "return asked",
    ),
    Mutant("a barrier that stays is over", "expires_at_ms == 0 or expires_at_ms", "expires_at_ms"),
    Mutant("any removal delivers", "op[1] == 'd' and op[2] == c.barrier", "op[1] == 'd'"),
    Mutant("a barrier stops renewals", "string.find('gnre', op[1], 1, true)", "false", walk=8),
    Mutant(
        "one lease operation passes a barrier", "only_leases = only_leases and", "only_leases ="
    ),
    Mutant(
        "a restore waits for agents",
        "check_begins(c)\n  elseif entries[c.barrier]",
        "check_begins(c) end if entries[c.barrier]",
    ),
    Mutant(
        "a barrier that was removed stops",
        "if not is_live(raw) then return nil end\n  local asked",
        "if not raw then return nil end\n  local asked",
    ),
    # --- freezes ----------------------------------------------------------------------------------
    Mutant(
        "a freeze is not checked",
        "if is_live(entries[FROZEN]) then check_frozen(c) end",
        "",
    ),
    Mutant("a frozen board takes no thaw", "if c.begins or c.agent == '~system'", "if false"),
    Mutant("a freeze stops renewals", "string.find('nr', op[1], 1, true)", "false"),
    Mutant("one renewal passes a freeze", "only_keeps = only_keeps and", "only_keeps =", walk=27),
    # --- writes -----------------------------------------------------------------------------------
    Mutant("no tombstone is written", "raw = head_of .. 't' .. author", "raw = false"),
    Mutant("a deletion leaves the index", "    fresh_members[key] = false\n", ""),
    Mutant("a creation leaves the index", "    fresh_members[key] = 0\n", ""),
    Mutant(
        "a tombstone outlives its key",
        "if old then fresh_members['\\1' .. key] = false end",
        "",
        walk=389,
    ),
    Mutant("creation is forgotten", "(live and sub(old, 9, 16) or stamp)", "stamp", walk=8),
    Mutant("the time to live is dropped", "  draft.expires[key] = expires_at_ms\n", ""),
    Mutant("an old time to live stays", "    fresh_expiries[key] = false\n", "", walk=8),
    Mutant("the log is not absolute", "log(c, packed)", "log(c, cmsgpack.pack(#results))"),
    Mutant(
        "a large value is kept inline",
        "elseif #value > LIMIT.VALUE_INLINE_BYTES_MAX then",
        "elseif false then",
        walk=12,
    ),
    # --- operations -------------------------------------------------------------------------------
    Mutant("an index is given twice", "draft.next_item[prefix] = index + 1", ""),
    Mutant("append overwrites", "if exists(key) then conflict(key, 0) end", "", walk=8),
    Mutant(
        "a prefix of the draft is spared",
        "for i = 1, draft.count do\n    local key = draft.keys[i]\n    if sub",
        "for i = 1, 0 do\n    local key = draft.keys[i]\n    if sub",
    ),
    Mutant(
        "removals are not counted", "if draft.removed > LIMIT", "if false and 0 > LIMIT", walk=98
    ),
    Mutant("the largest integer is exceeded", "if total > LIMIT.INTEGER_MAX or", "if", walk=92),
    Mutant(
        "an inexact integer is counted",
        "number <= LIMIT.INTEGER_MAX and",
        "true and",
        walk=96,
    ),
    # --- limits -----------------------------------------------------------------------------------
    Mutant("a limit is one too low", "count > LIMIT[limit]", "count >= LIMIT[limit]"),
    Mutant("a quota of keys is of bytes", "used.keys + more.keys, where", "used.bytes, where"),
    Mutant("quotas are ignored", "  if not c.begins then check_quotas(sums, c.account) end\n", ""),
    Mutant(
        "what others wrote stays theirs", "if before and whose ~= account then", "if false then"
    ),
    Mutant(
        "inboxes have no share", "if sub(namespace, 1, 6) == 'inbox/' then add", "if false then add"
    ),
    Mutant(
        "an account has no share",
        "add(sums, '@' .. account, keys, bytes)",
        "",
    ),
    Mutant("usage is not kept", "fresh_usage[field] = pack", "local _ = pack"),
    # --- batches ----------------------------------------------------------------------------------
    Mutant(
        "a refused commit leaves a trace",
        "  draft.next_item[prefix] = index + 1\n",
        "  draft.next_item[prefix] = index + 1\n"
        "  entries['#' .. prefix] = format('%d', index + 1)\n",
        walk=21,
    ),
    Mutant(
        "a prefix misses its own batch",
        "  flush()\n  local found, doomed",
        "  local found, doomed",
        walk=21,
    ),
    Mutant("a batch ends unwritten", "flush()\nreply[1] = revision", "reply[1] = revision"),
)
