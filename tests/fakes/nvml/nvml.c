/* A libnvidia-ml.so.1 that tells what a file says: pynvml, unchanged, is run over it.

   FAKE_NVML names the file, read anew whenever it is another one (put it there by a rename). Lines:
     driver VERSION | cuda NUMBER                    of the node
     gpu UUID                                        begins a GPU; its lines follow
     name TEXT | pci ADDRESS | total BYTES | free BYTES | capability MAJOR MINOR | minor N
     mig 0|1 | ecc VOLATILE AGGREGATE | remap CORRECTED UNCORRECTED PENDING FAILED | retired 0|1
     persistence 0|1 | link INDEX | process PID BYTES | recovery ACTION
     events                                          of the node: it tells of events, see below
     fault FUNCTION ERROR|hang|crash [INDEX]         INDEX: for that GPU alone
   What a GPU has no line for is NVML_ERROR_NOT_SUPPORTED.
   Events are lines that are appended to FAKE_NVML.events: INDEX TYPE DATA. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, TOO_SMALL = 7,
       NO_DRIVER = 9, TIMEOUT = 10, RECOVERY_FIELD = 230 };
enum { GPUS = 32, PROCESSES = 16, FAULTS = 16, TEXT = 96 };

typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} Pci;

typedef struct {
    char uuid[TEXT], name[TEXT], pci[32];
    unsigned long long total, free, ecc[2];
    int major, minor_version, minor, mig, has_ecc, has_remap, remap[4], retired, persistence,
        recovery;
    int links[GPUS], process_count;
    Process processes[PROCESSES];
} Gpu;

static struct { char function[64], how[16]; int index; } faults[FAULTS];
static int fault_count;
static char driver[TEXT];
static int cuda, gpu_count, ready, tells_events;
static long events_read;
static Gpu gpus[GPUS];
static int load(void);

static int faulty(const char *function, int index)
{
    for (int at = 0; at < fault_count; at++) {
        if (strcmp(faults[at].function, function))
            continue;
        if (faults[at].index >= 0 && faults[at].index != index)
            continue;
        if (!strcmp(faults[at].how, "hang"))
            for (;;)
                pause();
        if (!strcmp(faults[at].how, "crash"))
            raise(SIGSEGV);
        return atoi(faults[at].how);
    }
    return SUCCESS;
}

#define BEGIN(index) \
    do { \
        if (!ready) \
            return UNINITIALIZED; \
        load(); \
        int failed = faulty(__func__, index); \
        if (failed) \
            return failed; \
    } while (0)
#define OF(gpu) BEGIN((int)((gpu) - gpus))

static void gpu_line(Gpu *gpu, const char *word, const char *rest)
{
    int link;
    unsigned pid;
    unsigned long long used;
    if (!strcmp(word, "name"))
        snprintf(gpu->name, TEXT, "%.*s", TEXT - 1, rest);
    else if (!strcmp(word, "pci"))
        sscanf(rest, "%31s", gpu->pci);
    else if (!strcmp(word, "total"))
        gpu->total = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "free"))
        gpu->free = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "capability"))
        sscanf(rest, "%d %d", &gpu->major, &gpu->minor_version);
    else if (!strcmp(word, "minor"))
        gpu->minor = atoi(rest);
    else if (!strcmp(word, "mig"))
        gpu->mig = atoi(rest);
    else if (!strcmp(word, "ecc"))
        gpu->has_ecc = sscanf(rest, "%llu %llu", &gpu->ecc[0], &gpu->ecc[1]) == 2;
    else if (!strcmp(word, "remap"))
        gpu->has_remap = sscanf(rest, "%d %d %d %d", &gpu->remap[0], &gpu->remap[1],
                                &gpu->remap[2], &gpu->remap[3]) == 4;
    else if (!strcmp(word, "retired"))
        gpu->retired = atoi(rest);
    else if (!strcmp(word, "persistence"))
        gpu->persistence = atoi(rest);
    else if (!strcmp(word, "recovery"))
        gpu->recovery = atoi(rest);
    else if (!strcmp(word, "link") && sscanf(rest, "%d", &link) == 1 && link >= 0 && link < GPUS)
        gpu->links[link] = 1;
    else if (!strcmp(word, "process") && sscanf(rest, "%u %llu", &pid, &used) == 2
             && gpu->process_count < PROCESSES)
        gpu->processes[gpu->process_count++] = (Process){pid, used, ~0u, ~0u};
    else {
        fprintf(stderr, "fake NVML: what is %s %s?\n", word, rest);
        abort();
    }
}

static void line(const char *word, const char *rest)
{
    if (!strcmp(word, "driver"))
        snprintf(driver, TEXT, "%.*s", TEXT - 1, rest);
    else if (!strcmp(word, "cuda"))
        cuda = atoi(rest);
    else if (!strcmp(word, "events"))
        tells_events = 1;
    else if (!strcmp(word, "fault") && fault_count < FAULTS) {
        faults[fault_count].index = -1;
        sscanf(rest, "%63s %15s %d", faults[fault_count].function, faults[fault_count].how,
               &faults[fault_count].index);
        fault_count++;
    } else if (!strcmp(word, "gpu") && gpu_count < GPUS) {
        Gpu *gpu = &gpus[gpu_count];
        memset(gpu, 0, sizeof *gpu);
        gpu->minor = gpu->mig = gpu->retired = gpu->persistence = gpu->recovery = -1;
        snprintf(gpu->uuid, TEXT, "%.*s", TEXT - 1, rest);
        gpu_count++;
    } else
        gpu_line(&gpus[gpu_count ? gpu_count - 1 : 0], word, rest);
}

static int load(void)
{
    static struct timespec written;
    static ino_t number;
    char text[256], word[32];
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return NO_DRIVER;
    fstat(fileno(file), &now);
    if (now.st_ino == number && !memcmp(&now.st_mtim, &written, sizeof written)) {
        fclose(file);
        return SUCCESS;
    }
    number = now.st_ino;
    written = now.st_mtim;
    gpu_count = fault_count = tells_events = 0;
    while (fgets(text, sizeof text, file)) {
        text[strcspn(text, "\n")] = 0;
        int used = 0;
        if (sscanf(text, "%31s %n", word, &used) == 1 && word[0] != '#')
            line(word, text + used);
    }
    fclose(file);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int failed = load();
    if (failed)
        return failed;
    ready = 1;
    BEGIN(-1);
    return SUCCESS;
}

int nvmlShutdown(void)
{
    BEGIN(-1);
    ready = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int error)
{
    switch (error) {
    case NO_DRIVER: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "an error";
    }
}

int nvmlSystemGetDriverVersion(char *into, unsigned size)
{
    BEGIN(-1);
    snprintf(into, size, "%s", driver);
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *into)
{
    BEGIN(-1);
    *into = cuda;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *into)
{
    BEGIN(-1);
    *into = gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **into)
{
    BEGIN((int)index);
    if (index >= (unsigned)gpu_count)
        return INVALID;
    *into = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Gpu *gpu, char *into, unsigned size)
{
    OF(gpu);
    snprintf(into, size, "%s", gpu->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(Gpu *gpu, char *into, unsigned size)
{
    OF(gpu);
    snprintf(into, size, "%s", gpu->name);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *into)
{
    OF(gpu);
    *into = (Memory){gpu->total, gpu->free, gpu->total - gpu->free};
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *into)
{
    OF(gpu);
    memset(into, 0, sizeof *into);
    snprintf(into->address, sizeof into->address, "%s", gpu->pci);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor)
{
    OF(gpu);
    *major = gpu->major;
    *minor = gpu->minor_version;
    return SUCCESS;
}

static int told(int value, unsigned *into)
{
    if (value < 0)
        return UNSUPPORTED;
    *into = value;
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *into)
{
    OF(gpu);
    return told(gpu->minor, into);
}

int nvmlDeviceGetPersistenceMode(Gpu *gpu, unsigned *into)
{
    OF(gpu);
    return told(gpu->persistence, into);
}

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *now, unsigned *pending)
{
    OF(gpu);
    *pending = gpu->mig > 0;
    return told(gpu->mig, now);
}

int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int kind, int counter, unsigned long long *into)
{
    OF(gpu);
    if (!gpu->has_ecc || kind != 1) /* 1: uncorrected */
        return UNSUPPORTED;
    *into = gpu->ecc[counter != 0];
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    OF(gpu);
    if (!gpu->has_remap)
        return UNSUPPORTED;
    *corrected = gpu->remap[0];
    *uncorrected = gpu->remap[1];
    *pending = gpu->remap[2];
    *failed = gpu->remap[3];
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(Gpu *gpu, unsigned *into)
{
    OF(gpu);
    return told(gpu->retired, into);
}

int nvmlDeviceGetP2PStatus(Gpu *one, Gpu *other, int what, int *into)
{
    OF(one);
    *into = what == 2 && one->links[other - gpus] ? 0 : 4; /* 2: by NVLink; 4: it has none */
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *into)
{
    OF(gpu);
    unsigned room = *count;
    *count = gpu->process_count;
    if (!gpu->process_count)
        return SUCCESS;
    if (!into || room < *count)
        return TOO_SMALL;
    memcpy(into, gpu->processes, *count * sizeof *into);
    return SUCCESS;
}

typedef struct {
    Gpu *gpu;
    unsigned long long type, data;
    unsigned instance, compute;
} Event;

int nvmlEventSetCreate(void **set)
{
    BEGIN(-1);
    *set = &events_read;
    return tells_events ? SUCCESS : UNSUPPORTED;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    BEGIN(-1);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *into)
{
    OF(gpu);
    *into = 1 | 2 | 8; /* single and double bit errors, Xids */
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, void *set)
{
    (void)set;
    OF(gpu);
    return types & ~(1ull | 2 | 8) ? INVALID : SUCCESS;
}

int nvmlEventSetWait_v2(void *set, Event *into, unsigned timeout_ms)
{
    (void)set;
    BEGIN(-1);
    char path[512], text[128];
    snprintf(path, sizeof path, "%s.events", getenv("FAKE_NVML"));
    for (unsigned waited_ms = 0; waited_ms <= timeout_ms; waited_ms += 5) {
        FILE *file = fopen(path, "r");
        int index;
        if (file && !fseek(file, events_read, SEEK_SET) && fgets(text, sizeof text, file)
            && strchr(text, '\n')) {
            events_read = ftell(file);
            fclose(file);
            memset(into, 0, sizeof *into);
            if (sscanf(text, "%d %llu %llu", &index, &into->type, &into->data) != 3 || index < 0
                || index >= gpu_count)
                return INVALID;
            into->gpu = &gpus[index];
            into->instance = into->compute = ~0u;
            return SUCCESS;
        }
        if (file)
            fclose(file);
        usleep(5000);
    }
    return TIMEOUT;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, result;
    unsigned long long value;
} Field;

int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields)
{
    OF(gpu);
    for (int at = 0; at < count; at++) {
        int known = fields[at].field == RECOVERY_FIELD && gpu->recovery >= 0;
        fields[at].result = known ? SUCCESS : UNSUPPORTED;
        fields[at].value = known ? gpu->recovery : 0;
    }
    return SUCCESS;
}
