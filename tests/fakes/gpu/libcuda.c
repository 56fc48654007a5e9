// A libcuda.so.1 with the calls that save and restore the device state of a process, by pid.
//
// Order and results are those of the CUDA driver API's documentation: a call in the wrong state is
// ILLEGAL_STATE, a lock that times out leaves the process RUNNING and is NOT_READY, and what waits for
// a process that stands still waits for ever. A restore without room leaves the process CHECKPOINTED
// for good. What is said of a refusal is in said.json.
//
//   FAKE_GPU_PLACE    the folder of this node's devices, where restored processes find them
//   FAKE_GPU_FAULT    a file with lines `CALL WHAT [after]`, CALL being lock, checkpoint, restore,
//                     unlock, state, or init and version, which are cuInit and the driver's version.
//                     WHAT: hang, crash (of the target), failed (the state, for good), or a NUMBER, the
//                     result; in place of the call, or `after` it was carried out. Of a checkpoint also
//                     `nothing` (memory is not saved) and `stale` (the device stays open), which succeed
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"
#include "said.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401,
       NOT_FOUND = 500, NOT_READY = 600 };
enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2, FAILED = 3 };

enum { NO_CASE = -1 };
enum { HANG = -1, CRASH = -2, BECOMES_FAILED = -3, NOTHING = -4, STALE = -5 };

struct lock_arguments { unsigned int timeout_ms; };
struct pair { uint8_t old_uuid[16], new_uuid[16]; };
struct restore_arguments { struct pair *pairs; unsigned int count; };

struct target { int pid, memory; off_t at; };
struct fault { int before, after; };  // 0: none

// What a call needs, and the cases in which it is refused.
struct call {
	const char *name;
	uint32_t needs;
	int wrong[4];  // by the state that the process is in
	int stranger, nobody;
};

static const struct call LOCK_CALL = {"lock", RUNNING,
	{NO_CASE, LOCK_WHILE_LOCKED, LOCK_WHILE_CHECKPOINTED, NO_CASE}, LOCK_WITHOUT_CUDA, LOCK_OF_NOBODY};
static const struct call CHECKPOINT_CALL = {"checkpoint", LOCKED,
	{CHECKPOINT_WHILE_RUNNING, NO_CASE, CHECKPOINT_WHILE_CHECKPOINTED, NO_CASE}, NO_CASE, NO_CASE};
static const struct call RESTORE_CALL = {"restore", CHECKPOINTED,
	{RESTORE_WHILE_RUNNING, RESTORE_WHILE_LOCKED, NO_CASE, NO_CASE}, NO_CASE, NO_CASE};
static const struct call UNLOCK_CALL = {"unlock", LOCKED,
	{UNLOCK_WHILE_RUNNING, NO_CASE, UNLOCK_WHILE_CHECKPOINTED, NO_CASE}, NO_CASE, NO_CASE};
static const struct call STATE_CALL = {"state", 0, {NO_CASE, NO_CASE, NO_CASE, NO_CASE},
	STATE_WITHOUT_CUDA, STATE_OF_NOBODY};
static const struct call THREAD_CALL = {"thread", 0, {NO_CASE, NO_CASE, NO_CASE, NO_CASE},
	TID_WITHOUT_CUDA, NO_CASE};

static int last_case = NO_CASE;

// For the program in front: the case that the last call was refused by.
int fakeCudaCase(void) { return last_case; }

static int refuse(int which, int otherwise)
{
	last_case = which;
	return which == NO_CASE ? otherwise : CASES[which].result;
}

static void rest(void)
{
	struct timespec moment = {0, 1000000};
	nanosleep(&moment, NULL);
}

static int read_field(struct target *t, size_t offset, void *into, size_t size)
{
	return pread(t->memory, into, size, t->at + (off_t)offset) == (ssize_t)size ? 0 : -1;
}

static int write_field(struct target *t, size_t offset, const void *from, size_t size)
{
	return pwrite(t->memory, from, size, t->at + (off_t)offset) == (ssize_t)size ? 0 : -1;
}

#define FIELD(name) offsetof(struct page, name)

static uint32_t word(struct target *t, size_t offset)
{
	uint32_t value = 0;
	return read_field(t, offset, &value, sizeof value) ? UINT32_MAX : value;
}

static void put_word(struct target *t, size_t offset, uint32_t value)
{
	write_field(t, offset, &value, sizeof value);
}

static int find(const struct call *call, int pid, struct target *t)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "r");
	if (!maps)
		return refuse(call->nobody, INVALID_VALUE);
	unsigned long start = 0;
	while (fgets(line, sizeof line, maps))
		if (strstr(line, PAGE_NAME)) {
			start = strtoul(line, NULL, 16);
			break;
		}
	fclose(maps);
	if (!start)
		return refuse(call->stranger, NOT_INITIALIZED);
	snprintf(path, sizeof path, "/proc/%d/mem", pid);
	*t = (struct target){pid, open(path, O_RDWR | O_CLOEXEC), (off_t)start};
	if (t->memory < 0)
		return OPERATING_SYSTEM;
	uint64_t magic = 0;
	if (read_field(t, FIELD(magic), &magic, sizeof magic) || magic != PAGE_MAGIC) {
		close(t->memory);
		return NOT_INITIALIZED;
	}
	return SUCCESS;
}

static struct fault planted(const char *call)
{
	const char *path = getenv("FAKE_GPU_FAULT");
	FILE *file = path ? fopen(path, "r") : NULL;
	char line[128], name[32], what[32], when[32];
	struct fault fault = {0, 0};
	while (file && fgets(line, sizeof line, file)) {
		int words = sscanf(line, "%31s %31s %31s", name, what, when);
		if (words < 2 || strcmp(name, call))
			continue;
		int is = !strcmp(what, "hang") ? HANG : !strcmp(what, "crash") ? CRASH
			: !strcmp(what, "failed") ? BECOMES_FAILED : !strcmp(what, "nothing") ? NOTHING
			: !strcmp(what, "stale") ? STALE : atoi(what);
		*(words == 3 && !strcmp(when, "after") ? &fault.after : &fault.before) = is;
	}
	if (file)
		fclose(file);
	return fault;
}

static int happens(int fault, struct target *t)
{
	if (fault == HANG)
		for (;;)
			pause();
	if (fault == CRASH)
		kill(t->pid, SIGSEGV);
	if (fault == BECOMES_FAILED)
		put_word(t, FIELD(state), FAILED);
	return fault == CRASH || fault == BECOMES_FAILED ? OPERATING_SYSTEM : fault < 0 ? SUCCESS : fault;
}

// Finds the process, lets planted faults happen, and looks whether it stands where the call needs it.
static int begin(const struct call *call, int pid, struct target *t, struct fault *fault)
{
	last_case = NO_CASE;
	int result = find(call, pid, t);
	if (result || last_case != NO_CASE)
		return result;
	*fault = planted(call->name);
	result = happens(fault->before, t);
	uint32_t state = word(t, FIELD(state));
	if (!result && state != call->needs)
		result = refuse(state < 4 ? call->wrong[state] : NO_CASE, ILLEGAL_STATE);
	if (result || last_case != NO_CASE)
		close(t->memory);
	return result;
}

// The thread in the process does it, if the process can run; whoever waits for one that cannot waits on.
static int carry_out(struct target *t, uint32_t command)
{
	int given = 0;
	for (;;) {
		uint32_t left = word(t, FIELD(command));
		if (left == UINT32_MAX)
			return OPERATING_SYSTEM;
		if (left == COMMAND_NONE && given)
			return (int)word(t, FIELD(result));
		if (left == COMMAND_NONE) {
			put_word(t, FIELD(command), command);
			given = 1;
		}
		rest();
	}
}

static int end(struct target *t, int result, const struct fault *fault)
{
	if (!result)
		result = happens(fault->after, t);
	close(t->memory);
	return result;
}

int cuInit(unsigned int flags)
{
	int planted_result = planted("init").before;
	last_case = NO_CASE;
	return flags ? INVALID_VALUE : planted_result == CASES[NO_DEVICE].result
		? refuse(NO_DEVICE, 0) : planted_result;
}

int cuDriverGetVersion(int *version)
{
	int other = planted("version").before;
	*version = other ? other : 13000;
	return SUCCESS;
}

int cuGetErrorString(int code, const char **words)
{
	for (size_t at = 0; at < sizeof WORDS / sizeof *WORDS; at++)
		if (WORDS[at].code == code) {
			*words = WORDS[at].words;
			return SUCCESS;
		}
	*words = NULL;
	return INVALID_VALUE;
}

int cuCheckpointProcessGetState(int pid, int *state)
{
	struct target t;
	last_case = NO_CASE;
	*state = RUNNING;
	int result = find(&STATE_CALL, pid, &t);
	if (result || last_case != NO_CASE)
		return result;
	struct fault fault = planted(STATE_CALL.name);
	result = happens(fault.before, &t);
	*state = (int)word(&t, FIELD(state));
	return end(&t, result, &fault);
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
	struct target t;
	last_case = NO_CASE;
	*thread = 0;
	int result = find(&THREAD_CALL, pid, &t);
	if (result || last_case != NO_CASE)
		return result;
	*thread = (int)word(&t, FIELD(thread));
	close(t.memory);
	return SUCCESS;
}

int cuCheckpointProcessLock(int pid, struct lock_arguments *arguments)
{
	struct target t;
	struct fault fault;
	int result = begin(&LOCK_CALL, pid, &t, &fault);
	if (result || last_case != NO_CASE)
		return result;
	put_word(&t, FIELD(timeout_ms), arguments ? arguments->timeout_ms : 0);
	result = carry_out(&t, COMMAND_LOCK);
	if (result == NOT_READY)
		result = refuse(LOCK_WITH_WORK_OUTSTANDING, NOT_READY);
	return end(&t, result, &fault);
}

int cuCheckpointProcessCheckpoint(int pid, void *arguments)
{
	(void)arguments;
	struct target t;
	struct fault fault;
	int result = begin(&CHECKPOINT_CALL, pid, &t, &fault);
	if (result || last_case != NO_CASE)
		return result;
	result = carry_out(&t, fault.before == NOTHING ? COMMAND_SAVE_NOTHING
		: fault.before == STALE ? COMMAND_SAVE_STALE : COMMAND_SAVE);
	if (result)
		put_word(&t, FIELD(state), FAILED);
	return end(&t, result, &fault);
}

static int restore_of(struct target *t, const struct restore_arguments *arguments)
{
	struct page page = {0};
	const char *place = getenv("FAKE_GPU_PLACE");
	snprintf(page.place, sizeof page.place, "%s", place ? place : "");
	uint32_t count = arguments ? arguments->count : 0;
	if (count > PAIRS_MAX)
		count = PAIRS_MAX;
	for (uint32_t at = 0; at < count; at++) {
		memcpy(page.pairs[at][0], arguments->pairs[at].old_uuid, 16);
		memcpy(page.pairs[at][1], arguments->pairs[at].new_uuid, 16);
	}
	write_field(t, FIELD(place), page.place, sizeof page.place);
	put_word(t, FIELD(pairs_count), count);
	write_field(t, FIELD(pairs), page.pairs, sizeof page.pairs);
	int result = carry_out(t, COMMAND_RESTORE);
	if (result == INVALID_VALUE)
		return refuse(RESTORE_WITH_A_DEVICE_MISSING, result);
	if (result == OUT_OF_MEMORY) {
		put_word(t, FIELD(stranded), 1);
		return refuse(RESTORE_WITHOUT_ROOM, result);
	}
	return result;
}

int cuCheckpointProcessRestore(int pid, struct restore_arguments *arguments)
{
	struct target t;
	struct fault fault;
	int result = begin(&RESTORE_CALL, pid, &t, &fault);
	if (result || last_case != NO_CASE)
		return result;
	result = word(&t, FIELD(stranded)) ? refuse(RESTORE_WHILE_STRANDED, OPERATING_SYSTEM)
		: restore_of(&t, arguments);
	return end(&t, result, &fault);
}

int cuCheckpointProcessUnlock(int pid, void *arguments)
{
	(void)arguments;
	struct target t;
	struct fault fault;
	int result = begin(&UNLOCK_CALL, pid, &t, &fault);
	if (result || last_case != NO_CASE)
		return result;
	return end(&t, carry_out(&t, COMMAND_UNLOCK), &fault);
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	(void)version, (void)flags;
	*function = dlsym(RTLD_DEFAULT, symbol);
	if (!*function) {
		void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
		*function = self ? dlsym(self, symbol) : NULL;
	}
	if (status)
		*status = *function ? 0 : 1;
	return *function ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
