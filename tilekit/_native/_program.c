/* Recorded work, submitted in one go: see `Recorded` in _capture/replay.py, whose lock the caller holds.
 *
 * Nothing is packed or looked up any more. As with a launch, the memory must be free for the stream; else nothing has been done.
 *
 * Or the same work on other memory, which is its caller's, who orders it: `run_at`. Then the steps and the parameters of launches are
 * copied, the addresses in the copy are set, and nothing of the program changes, so that any number of threads may do that.
 */
#include "_launch.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_STORAGES = 4096, FEW = 32, ALIGNED = 64 };

typedef struct {
    int64_t kind, field[FIELDS - 1];
} Step;

/* An address that depends on where the memory is: where it is written, in bytes from the first step on; which memory, and how far
 * behind its start; whether it goes into a tensor map. */
typedef struct {
    int64_t at, base, shift, mapped;
} Move;

typedef int (*copy_function)(uint64_t to, uint64_t from, size_t nbytes, void *stream);
typedef int (*fill8_function)(uint64_t to, unsigned char value, size_t count, void *stream);
typedef int (*fill16_function)(uint64_t to, unsigned short value, size_t count, void *stream);
typedef int (*fill32_function)(uint64_t to, unsigned value, size_t count, void *stream);

typedef struct {
    PyObject_HEAD
    Launcher *launcher; /* one of the same device */
    PyObject *steps;    /* bytes */
    PyObject *blocks;   /* bytes, or NULL: the parameters of launches whose memory is elsewhere each time */
    PyObject *moves;    /* bytes, or NULL: the addresses in these and in the steps */
    int (*replace)(void *map, void *address);
    int (*graph)(void *executable, void *stream);
    copy_function copy;
    fill8_function fill8;
    fill16_function fill16;
    fill32_function fill32;
} Program;

/* The bytes of the steps, with which the blocks begin at a multiple of ALIGNED. */
static size_t size_of_steps(const Program *self)
{
    return ((size_t)PyBytes_GET_SIZE(self->steps) + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* Whether all parameters of launches, and all addresses that are set, lie in the steps and blocks. */
static int are_moves(const Program *self)
{
    if (self->moves == NULL)
        return 1;
    const Step *steps = (const Step *)PyBytes_AS_STRING(self->steps);
    const Move *moves = (const Move *)PyBytes_AS_STRING(self->moves);
    int64_t blocks = PyBytes_GET_SIZE(self->blocks), room = (int64_t)size_of_steps(self) + blocks;
    int within = PyBytes_GET_SIZE(self->moves) % (Py_ssize_t)sizeof *moves == 0;
    for (Py_ssize_t i = 0; within && i < PyBytes_GET_SIZE(self->steps) / (Py_ssize_t)sizeof *steps; i++) {
        const int64_t *f = steps[i].field;
        if (steps[i].kind == LAUNCH)
            within = f[8] >= 0 && f[8] % ALIGNED == 0 && f[9] >= 0 && f[10] >= 0 && f[9] <= MOST_SLOTS && f[10] <= MOST_MAPS &&
                     f[8] + 8 * f[9] + MAP_BYTES * f[10] <= blocks;
    }
    for (Py_ssize_t i = 0; within && i < PyBytes_GET_SIZE(self->moves) / (Py_ssize_t)sizeof *moves; i++)
        within = moves[i].base >= 0 && moves[i].at >= 0 && moves[i].at % (moves[i].mapped ? ALIGNED : 8) == 0 &&
                 moves[i].at + (moves[i].mapped ? MAP_BYTES : 8) <= room;
    return within;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"launcher", "steps", "graph", "copy", "fill8", "fill16", "fill32", "replace", "blocks", "moves", NULL};
    Program parsed;
    memset(&parsed, 0, sizeof parsed);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!SO&O&O&O&O&O&|SS:Program", keywords, launcher_type, &parsed.launcher,
                                     &parsed.steps, as_pointer, &parsed.graph, as_pointer, &parsed.copy, as_pointer, &parsed.fill8,
                                     as_pointer, &parsed.fill16, as_pointer, &parsed.fill32, as_pointer, &parsed.replace,
                                     &parsed.blocks, &parsed.moves))
        return NULL;
    if (PyBytes_GET_SIZE(parsed.steps) % (Py_ssize_t)sizeof(Step) != 0) {
        PyErr_Format(PyExc_ValueError, "a step has %d numbers of eight bytes", FIELDS);
        return NULL;
    }
    if ((parsed.moves == NULL) != (parsed.blocks == NULL) || !are_moves(&parsed)) {
        PyErr_SetString(PyExc_ValueError, "a launch or a move is outside of the steps and blocks");
        return NULL;
    }
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    memcpy((char *)self + sizeof(PyObject), (char *)&parsed + sizeof(PyObject), sizeof parsed - sizeof(PyObject));
    Py_INCREF(self->launcher);
    Py_INCREF(self->steps);
    Py_XINCREF(self->blocks);
    Py_XINCREF(self->moves);
    return (PyObject *)self;
}

static void program_dealloc(Program *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->launcher);
    Py_XDECREF(self->steps);
    Py_XDECREF(self->blocks);
    Py_XDECREF(self->moves);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* The driver's code of the first step that it refuses, or 0. Without Python's lock. */
static int submit_steps(Program *self, const Step *steps, Py_ssize_t count, void *stream)
{
    int code = 0;
    for (Py_ssize_t i = 0; i < count && code == 0; i++) {
        const int64_t *f = steps[i].field;
        switch (steps[i].kind) {
        case LAUNCH:
            code = self->launcher->launch((void *)f[0], (unsigned)f[1], (unsigned)f[2], (unsigned)f[3], (unsigned)f[4],
                                          (unsigned)f[5], (unsigned)f[6], (unsigned)f[7], stream, (void **)f[8], NULL);
            break;
        case GRAPH:
            code = self->graph((void *)f[0], stream);
            break;
        case COPY:
            code = self->copy((uint64_t)f[0], (uint64_t)f[1], (size_t)f[2], stream);
            break;
        default:
            code = f[3] == 1   ? self->fill8((uint64_t)f[0], (unsigned char)f[1], (size_t)f[2], stream)
                   : f[3] == 2 ? self->fill16((uint64_t)f[0], (unsigned short)f[1], (size_t)f[2], stream)
                               : self->fill32((uint64_t)f[0], (unsigned)f[1], (size_t)f[2], stream);
        }
    }
    return code;
}

/* Look at all storages of a list; the number of views that are there now, negative if one is not free. */
static Py_ssize_t look(Program *self, PyObject *storages, unsigned uses, View *views, Py_ssize_t count, PyObject *stream)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(storages); i++) {
        View *view = &views[count++];
        view->reads = NULL;
        view->uses = uses;
        view->storage = Py_NewRef(PyList_GET_ITEM(storages, i));
        if (clear_way(self->launcher, view, stream) != 1)
            return -count;
    }
    return count;
}

/* What the end of the work is recorded by: the stream's lock, the mark's serial, and the event. All NULL if that is not asked for. */
typedef struct {
    PyObject *lock, *serial, *event;
    void *handle;
    int code; /* the driver's, of the recording */
} Recording;

/* Get ready to record in the stream, whose lock is held from now on; 0, perhaps with an exception, if that cannot be. */
static int begin_recording(PyObject *stream, Launcher *launcher, Recording *recording)
{
    PyObject *lock = held(stream, &Stream__lock), *pool = held(stream, &Stream__events);
    if (launcher->record == NULL || lock == NULL || pool == NULL || !PyList_CheckExact(pool))
        return 0;
    Py_INCREF(lock);
    if (!lock_stream(lock)) {
        Py_DECREF(lock);
        return 0;
    }
    recording->lock = lock;
    recording->event = take_event(stream, pool);
    PyObject *address = recording->event ? PyNumber_Long(recording->event) : NULL;
    int known = address != NULL && as_pointer(address, &recording->handle);
    Py_XDECREF(address);
    return known && (recording->serial = begin_mark(stream)) != NULL;
}

/* Let the lock go; the mark, if the event was recorded. */
static PyObject *end_recording(PyObject *stream, Launcher *launcher, Recording *recording, int recorded)
{
    PyObject *type, *value, *trace, *mark = NULL;
    PyErr_Fetch(&type, &value, &trace);
    if (recorded)
        mark = (PyObject *)append_mark(stream, launcher, recording->event, recording->serial);
    else if (recording->event != NULL && PyList_Append(held(stream, &Stream__events), recording->event) != 0)
        PyErr_WriteUnraisable(stream);
    Py_CLEAR(recording->serial);
    Py_CLEAR(recording->event);
    unlock_stream(recording->lock);
    Py_CLEAR(recording->lock);
    if (type != NULL)
        PyErr_Restore(type, value, trace);
    return mark;
}

/* run(stream, reads, writes, label, mark): (code, mark): LAUNCHED, SLOW if nothing was done, or the driver's code; and the Mark
 * behind the work, if one was asked for and made. */
static PyObject *program_run(Program *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyList_CheckExact(args[1]) || !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "expected a stream, two lists of storages, a label, and whether to make a mark");
        return NULL;
    }
    PyObject *stream = args[0], *serial = NULL, *address = NULL, *mark = NULL;
    View few[FEW], *views = few;
    Py_ssize_t storages = PyList_GET_SIZE(args[1]) + PyList_GET_SIZE(args[2]), count = 0;
    void *context = NULL, *handle;
    int code = SLOW, failed = 0;
    Recording recording = {NULL, NULL, NULL, NULL, 0};

    if (held(stream, &Stream_closed) != Py_False || storages > MOST_STORAGES || self->launcher->current(&context) != 0 ||
        context != self->launcher->context)
        goto out;
    if (storages > FEW && (views = malloc((size_t)storages * sizeof *views)) == NULL)
        return PyErr_NoMemory();
    count = look(self, args[2], WRITTEN, views, 0, stream);
    if (count >= 0)
        count = look(self, args[1], READ, views, count, stream);
    if (count < 0) {
        count = -count;
        goto out;
    }
    address = get(stream, &Stream_address);
    if (address == NULL || !as_pointer(address, &handle) || (args[4] == Py_True && !begin_recording(stream, self->launcher, &recording)))
        goto out;
    Py_BEGIN_ALLOW_THREADS
    code = submit_steps(self, (const Step *)PyBytes_AS_STRING(self->steps),
                        PyBytes_GET_SIZE(self->steps) / (Py_ssize_t)sizeof(Step), handle);
    if (code == 0 && recording.event != NULL)
        recording.code = self->launcher->record(recording.handle, handle);
    Py_END_ALLOW_THREADS
    /* Some of it may have been submitted, even if the driver refused the rest. */
    serial = recording.serial != NULL ? Py_NewRef(recording.serial) : get(stream, &Stream_pending);
    failed = serial == NULL || !note(views, (int)count, stream, serial) || !note_name(stream, serial, args[3]);
out:
    if (recording.lock != NULL)
        mark = end_recording(stream, self->launcher, &recording, code == 0 && recording.code == 0 && !failed);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(views[i].storage);
        Py_XDECREF(views[i].reads);
    }
    if (views != few)
        free(views);
    Py_XDECREF(serial);
    Py_XDECREF(address);
    if (failed || (PyErr_Occurred() && (code != SLOW || !PyErr_ExceptionMatches(PyExc_Exception)))) {
        Py_XDECREF(mark);
        return NULL;
    }
    PyErr_Clear();
    return Py_BuildValue("iN", code, mark != NULL ? mark : Py_NewRef(Py_None));
}

/* Set the addresses in a copy of the steps and blocks; 0 if some are not known. */
static int set_addresses(const Program *self, char *copy, const uint64_t *addresses, Py_ssize_t known)
{
    const Move *moves = (const Move *)PyBytes_AS_STRING(self->moves);
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(self->moves) / (Py_ssize_t)sizeof *moves; i++) {
        if (moves[i].base >= known)
            return 0;
        uint64_t address = addresses[moves[i].base] + (uint64_t)moves[i].shift;
        if (!moves[i].mapped)
            memcpy(copy + moves[i].at, &address, sizeof address);
        else if (self->replace(copy + moves[i].at, (void *)address) != 0)
            return 0;
    }
    return 1;
}

/* Let each launch in a copy of the steps find its parameters in that of the blocks: the tensor maps come first there, and last for the
 * kernel. `pointers` has room for the addresses of all. */
static void set_parameters(Step *steps, Py_ssize_t count, char *blocks, void **pointers)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t *f = steps[i].field;
        if (steps[i].kind != LAUNCH)
            continue;
        char *maps = blocks + f[8], *values = maps + MAP_BYTES * f[10];
        f[8] = (int64_t)pointers;
        for (int64_t j = 0; j < f[9]; j++)
            *pointers++ = values + 8 * j;
        for (int64_t j = 0; j < f[10]; j++)
            *pointers++ = maps + MAP_BYTES * j;
    }
}

static PyTypeObject *program_type;

int is_movable(PyObject *object)
{
    return Py_TYPE(object) == program_type && ((Program *)object)->moves != NULL;
}

int run_at(PyObject *program, const uint64_t *addresses, Py_ssize_t known, void *stream)
{
    Program *self = (Program *)program;
    void *context = NULL;
    size_t of_steps = size_of_steps(self), blocks = (size_t)PyBytes_GET_SIZE(self->blocks);
    char *room = malloc(of_steps + 2 * blocks + 2 * ALIGNED); /* a parameter has no fewer bytes than its address */
    if (room == NULL) {
        PyErr_NoMemory();
        return FAILED;
    }
    char *copy = (char *)(((uintptr_t)room + ALIGNED - 1) / ALIGNED * ALIGNED);
    Py_ssize_t count = PyBytes_GET_SIZE(self->steps) / (Py_ssize_t)sizeof(Step);
    memcpy(copy, PyBytes_AS_STRING(self->steps), (size_t)PyBytes_GET_SIZE(self->steps));
    memcpy(copy + of_steps, PyBytes_AS_STRING(self->blocks), blocks);
    int code = SLOW;
    if (self->launcher->current(&context) == 0 && context == self->launcher->context &&
        set_addresses(self, copy, addresses, known)) {
        set_parameters((Step *)copy, count, copy + of_steps, (void **)(copy + of_steps + (blocks + 7) / 8 * 8));
        Py_BEGIN_ALLOW_THREADS
        code = submit_steps(self, (const Step *)copy, count, stream);
        Py_END_ALLOW_THREADS
    }
    free(room);
    return code;
}

/* run_at(addresses, stream): LAUNCHED; SLOW if nothing was done; or the driver's code. */
static PyObject *program_run_at(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    uint64_t addresses[MOST_ADDRESSES];
    void *stream;
    if (nargs != 2 || !PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) > MOST_ADDRESSES || !is_movable(self)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of addresses and that of a stream, of a program that can be moved");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++)
        if (!as_pointer(PyTuple_GET_ITEM(args[0], i), &addresses[i]))
            return NULL;
    if (!as_pointer(args[1], &stream))
        return NULL;
    int code = run_at(self, addresses, PyTuple_GET_SIZE(args[0]), stream);
    return code == FAILED ? NULL : PyLong_FromLong(code);
}

static PyMethodDef program_methods[] = {
    {"run_at", (PyCFunction)(void (*)(void))program_run_at, METH_FASTCALL, "See _launch.pyi."},
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};

PyObject *make_program_type(void)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Recorded work, submitted in one go."},
        {Py_tp_new, program_new},
        {Py_tp_dealloc, program_dealloc},
        {Py_tp_methods, program_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "tilekit._native._launch.Program",
        .basicsize = sizeof(Program),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
        .slots = slots,
    };
    PyObject *type = PyType_FromSpec(&spec);
    program_type = (PyTypeObject *)type; /* which the module keeps */
    return type;
}
