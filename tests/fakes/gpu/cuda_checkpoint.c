// The program in front of libcuda.so.1, with the options, words and exit statuses of NVIDIA's.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "said.h"

struct lock_arguments { unsigned int timeout_ms; char rest[60]; };
struct pair { uint8_t old_uuid[16], new_uuid[16]; };
struct restore_arguments { struct pair *pairs; unsigned int count; char rest[52]; };

extern int cuInit(unsigned int);
extern int cuGetErrorString(int, const char **);
extern int cuCheckpointProcessGetState(int, int *);
extern int cuCheckpointProcessGetRestoreThreadId(int, int *);
extern int cuCheckpointProcessLock(int, struct lock_arguments *);
extern int cuCheckpointProcessCheckpoint(int, void *);
extern int cuCheckpointProcessRestore(int, struct restore_arguments *);
extern int cuCheckpointProcessUnlock(int, void *);

static const char *STATES[] = {"running", "locked", "checkpointed", "failed"};

static int uuid(const char *text, uint8_t into[16])
{
	int at = 0;
	if (!strncmp(text, "GPU-", 4))
		text += 4;
	for (; *text && *text != '=' && *text != ',' && at < 32; text++) {
		const char *digits = "0123456789abcdef", *found = strchr(digits, *text | 32);
		if (*text == '-')
			continue;
		if (!found)
			return -1;
		into[at / 2] = (uint8_t)(into[at / 2] << 4 | (found - digits));
		at++;
	}
	return at == 32 ? 0 : -1;
}

static unsigned int pairs_of(char *text, struct pair *pairs, unsigned int most)
{
	unsigned int count = 0;
	for (char *each = strtok(text, ","); each && count < most; each = strtok(NULL, ",")) {
		char *middle = strchr(each, '=');
		if (!middle || uuid(each, pairs[count].old_uuid) || uuid(middle + 1, pairs[count].new_uuid))
			return most + 1;
		count++;
	}
	return count;
}

static int failed(const char *action, int pid, int code)
{
	const char *words = NULL;
	cuGetErrorString(code, &words);
	fprintf(stderr, "Could not %s on process ID %d: \"%s\"\n", action, pid, words ? words : "unknown error");
	return code;
}

int main(int argc, char **argv)
{
	const char *action = NULL;
	char *map = NULL;
	int pid = 0, state = 0, thread = 0, code = 0;
	struct lock_arguments lock = {0};
	struct pair pairs[16];
	struct restore_arguments restore = {pairs, 0, {0}};
	memset(pairs, 0, sizeof pairs);
	for (int at = 1; at < argc; at++) {
		if (!strcmp(argv[at], "--help") || !strcmp(argv[at], "-h"))
			return fputs(HELP, stdout), 0;
		if (!strcmp(argv[at], "--get-state"))
			action = "get-state";
		else if (!strcmp(argv[at], "--get-restore-tid"))
			action = "get-restore-tid";
		else if (at + 1 == argc)
			return fputs(HELP, stderr), 1;
		else if (!strcmp(argv[at], "--action"))
			action = argv[++at];
		else if (!strcmp(argv[at], "--pid"))
			pid = atoi(argv[++at]);
		else if (!strcmp(argv[at], "--timeout"))
			lock.timeout_ms = (unsigned int)atoi(argv[++at]);
		else if (!strcmp(argv[at], "--device-map"))
			map = argv[++at];
		else
			return fputs(HELP, stderr), 1;
	}
	if (!action || pid <= 0)
		return fputs(HELP, stderr), 1;
	code = cuInit(0);
	if (code)
		return fprintf(stderr, "Error initializing CUDA\n"), code;
	if (!strcmp(action, "get-state")) {
		code = cuCheckpointProcessGetState(pid, &state);
		if (!code)
			puts(state >= 0 && state < 4 ? STATES[state] : "unknown");
		return code ? failed("get state", pid, code) : 0;
	}
	if (!strcmp(action, "get-restore-tid")) {
		if (cuCheckpointProcessGetRestoreThreadId(pid, &thread))
			return fprintf(stderr, "Could not find restore thread for process ID %d\n", pid), 1;
		return printf("%d\n", thread), 0;
	}
	if (!strcmp(action, "lock"))
		code = cuCheckpointProcessLock(pid, &lock);
	else if (!strcmp(action, "checkpoint"))
		code = cuCheckpointProcessCheckpoint(pid, NULL);
	else if (!strcmp(action, "unlock"))
		code = cuCheckpointProcessUnlock(pid, NULL);
	else if (!strcmp(action, "restore")) {
		restore.count = map ? pairs_of(map, pairs, 16) : 0;
		code = restore.count > 16 ? 1 : cuCheckpointProcessRestore(pid, &restore);
	} else
		return fputs(HELP, stderr), 1;
	return code ? failed(action, pid, code) : 0;
}
