/* One launch: a Launcher is for one plan of a kernel on one device.
 *
 * It launches as long as no two arguments share memory that is written. Where that is not so, or anything else is unusual, it has done nothing and says SLOW: then Python does it (`KernelLaunch._launch`).
 */
#include "_launch.h"
#include <string.h>

PyTypeObject *launcher_type;

/* How many parameters are always the same. */
static Py_ssize_t rest_of(const Launcher *self)
{
    return self->rest == NULL ? 0 : PyBytes_GET_SIZE(self->rest) / (Py_ssize_t)sizeof(uint64_t);
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"launch", "current", "context", "function",  "grid",   "block", "shared_bytes", "kinds",
                               "uses",   "slots",   "record",  "query",     "wait",      "not_ready", "spin_s", "rest",  "maps", NULL};
    Launcher parsed;
    memset(&parsed, 0, sizeof parsed);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&O&(III)(III)ISSS|O&O&O&idSO!:Launcher", keywords, as_pointer, &parsed.launch,
                                     as_pointer, &parsed.current, as_pointer, &parsed.context, as_pointer, &parsed.function,
                                     &parsed.grid[0], &parsed.grid[1], &parsed.grid[2], &parsed.block[0], &parsed.block[1],
                                     &parsed.block[2], &parsed.shared_bytes, &parsed.kinds, &parsed.uses,
                                     &parsed.slots, as_pointer, &parsed.record, as_pointer, &parsed.query, as_pointer,
                                     &parsed.wait, &parsed.not_ready, &parsed.spin_s, &parsed.rest,
                                     &PyTuple_Type, &parsed.maps))
        return NULL;
    parsed.count = PyBytes_GET_SIZE(parsed.kinds);
    Py_ssize_t maps = maps_of(&parsed), slots = PyBytes_GET_SIZE(parsed.slots) + rest_of(&parsed) + maps;
    if (PyBytes_GET_SIZE(parsed.uses) != parsed.count || slots > MOST_SLOTS || parsed.count > MOST_VIEWS || maps > MOST_MAPS) {
        PyErr_Format(PyExc_ValueError, "a Launcher takes %d arguments, %d parameters and %d maps at most", MOST_VIEWS, MOST_SLOTS,
                     MOST_MAPS);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < maps; i++) {
        Py_ssize_t number;
        PyObject *recent;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parsed.maps, i), "nO!", &number, &PyDict_Type, &recent))
            return NULL;
        if (number < 0 || number >= parsed.count) {
            PyErr_SetString(PyExc_ValueError, "a tensor map is of one of the arguments");
            return NULL;
        }
    }
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    memcpy((char *)self + sizeof(PyObject), (char *)&parsed + sizeof(PyObject), sizeof parsed - sizeof(PyObject));
    Py_INCREF(self->kinds);
    Py_INCREF(self->uses);
    Py_INCREF(self->slots);
    Py_XINCREF(self->rest);
    Py_XINCREF(self->maps);
    return (PyObject *)self;
}

static void launcher_dealloc(Launcher *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->kinds);
    Py_XDECREF(self->uses);
    Py_XDECREF(self->slots);
    Py_XDECREF(self->rest);
    Py_XDECREF(self->maps);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* A signed or unsigned parameter of fewer than 64 bits. */
static int pack_narrow(PyObject *value, int bits, int is_signed, uint64_t *slot)
{
    int64_t number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred())
        return 0;
    if (is_signed ? number < -((int64_t)1 << (bits - 1)) || number >= (int64_t)1 << (bits - 1)
                  : number < 0 || number >= (int64_t)1 << bits) {
        PyErr_SetString(PyExc_OverflowError, "a value does not fit its parameter");
        return 0;
    }
    *slot = (uint64_t)number & (((uint64_t)1 << bits) - 1);
    return 1;
}

/* One parameter, in a slot of eight bytes that is zero so far; 0 with an exception if the value is none of that type. */
static int pack_one(char code, PyObject *value, uint64_t *slot)
{
    switch (code) {
    case 'q': {
        if (small_int(value, slot))
            return 1;
        int64_t number = PyLong_AsLongLong(value);
        *slot = (uint64_t)number;
        return number != -1 || !PyErr_Occurred();
    }
    case 'Q':
        if (small_int(value, slot))
            return 1;
        *slot = PyLong_Check(value) ? PyLong_AsUnsignedLongLong(value) : PyLong_AsUnsignedLongLongMask(value);
        return *slot != (uint64_t)-1 || !PyErr_Occurred();
    case 'd':
    case 'f': {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred())
            return 0;
        float single = (float)number;
        if (code == 'd')
            memcpy(slot, &number, sizeof number);
        else
            memcpy(slot, &single, sizeof single);
        return 1;
    }
    case '?': {
        int truth = PyObject_IsTrue(value);
        *slot = truth > 0;
        return truth >= 0;
    }
    default: {
        int is_signed = code >= 'a';
        char kind = (char)(is_signed ? code : code - 'A' + 'a');
        return pack_narrow(value, kind == 'b' ? 8 : kind == 'h' ? 16 : 32, is_signed, slot);
    }
    }
}

PyObject *flat_of(char kind, PyObject *argument)
{
    PyObject *view = kind == PARTITION ? get(argument, &Partition_tensor) : Py_NewRef(argument);
    PyObject *flat = view ? get(view, &Tensor_flat) : NULL;
    Py_XDECREF(view);
    return flat;
}

int pack_all(Launcher *self, PyObject *const *arguments, uint64_t *values, Py_ssize_t *firsts)
{
    const char *kinds = PyBytes_AS_STRING(self->kinds), *codes = PyBytes_AS_STRING(self->slots);
    Py_ssize_t slot = 0, slots = PyBytes_GET_SIZE(self->slots);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (firsts != NULL)
            firsts[i] = slot;
        if (kinds[i] == ABSENT)
            continue;
        if (kinds[i] == SCALAR) {
            if (slot >= slots || !pack_one(codes[slot], arguments[i], &values[slot]))
                return 0;
            slot++;
            continue;
        }
        PyObject *flat = flat_of(kinds[i], arguments[i]);
        int fits = flat != NULL && PyTuple_CheckExact(flat) && slot + PyTuple_GET_SIZE(flat) <= slots;
        for (Py_ssize_t j = 0; fits && j < PyTuple_GET_SIZE(flat); j++, slot++)
            fits = pack_one(codes[slot], PyTuple_GET_ITEM(flat, j), &values[slot]);
        Py_XDECREF(flat);
        if (!fits)
            return 0;
    }
    return slot == slots;
}

int copy_map(Launcher *self, Py_ssize_t number, PyObject *flat, Map *map)
{
    PyObject *recent = PyTuple_GET_ITEM(PyTuple_GET_ITEM(self->maps, number), 1), *known = PyDict_GetItemWithError(recent, flat);
    int found = known != NULL && PyBytes_CheckExact(known) && PyBytes_GET_SIZE(known) == MAP_BYTES;
    if (found)
        memcpy(map->bytes, PyBytes_AS_STRING(known), MAP_BYTES);
    return found;
}

Py_ssize_t maps_of(const Launcher *self)
{
    return self->maps == NULL ? 0 : PyTuple_GET_SIZE(self->maps);
}

Py_ssize_t mapped(const Launcher *self, Py_ssize_t number)
{
    return PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(self->maps, number), 0));
}

/* The tensor maps; 0, perhaps with an exception, if not all are known. */
static int copy_maps(Launcher *self, PyObject *const *arguments, Map *maps)
{
    for (Py_ssize_t i = 0; i < maps_of(self); i++) {
        Py_ssize_t number = mapped(self, i);
        PyObject *flat = flat_of(PyBytes_AS_STRING(self->kinds)[number], arguments[number]);
        int found = flat != NULL && copy_map(self, i, flat, &maps[i]);
        Py_XDECREF(flat);
        if (!found)
            return 0;
    }
    return 1;
}

/* Take a moment, (stream, serial) or None, apart; 0 if there is none, -1 with an exception. */
static int moment(PyObject *use, PyObject **stream, PyObject **serial)
{
    if (use == Py_None)
        return 0;
    if (!PyTuple_CheckExact(use) || PyTuple_GET_SIZE(use) != 2) {
        PyErr_SetString(PyExc_TypeError, "a moment is a stream and a serial");
        return -1;
    }
    *stream = PyTuple_GET_ITEM(use, 0);
    *serial = PyTuple_GET_ITEM(use, 1);
    return 1;
}

/* Let the stream wait for the moments of all who have read the memory since; as `clear_way`. */
static int clear_reads(Launcher *self, PyObject *reads, PyObject *stream)
{
    PyObject *other, *serial, *all = PyDict_Copy(reads); /* others may read it meanwhile */
    Py_ssize_t at = 0;
    int clear = all != NULL ? 1 : -1;
    while (clear == 1 && PyDict_Next(all, &at, &other, &serial))
        if (!wait_for(self, stream, other, serial))
            clear = PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(all);
    return clear;
}

/* Where it is kept who uses some memory, borrowed: of others' memory its history, else the storage itself, or what stands for one
 * (an Arena). NULL, and no exception, if it is of another class. */
static PyObject *history_of(PyObject *storage)
{
    if (Py_TYPE(storage) == Imported_history.owner)
        storage = held(storage, &Imported_history);
    return storage != NULL && PyObject_TypeCheck(storage, AccessHistory_last_write.owner) ? storage : NULL;
}

/* An attribute of that, a new reference, or NULL: those of AccessHistory lie in all derived classes at the same place. */
static PyObject *kept(PyObject *history, const Slot *slot)
{
    return Py_XNewRef(*field(history, slot));
}

static void set_kept(PyObject *history, const Slot *slot, PyObject *value)
{
    Py_XSETREF(*field(history, slot), Py_NewRef(value));
}

/* Let the stream wait for a moment, or for None; as `clear_way`. */
static int clear_moment(Launcher *self, PyObject *history, const Slot *slot, PyObject *stream)
{
    PyObject *use = kept(history, slot), *other, *serial;
    int known = use ? moment(use, &other, &serial) : -1;
    if (known == 1 && !wait_for(self, stream, other, serial))
        known = -1;
    Py_XDECREF(use);
    return known >= 0 ? 1 : PyErr_Occurred() ? -1 : 0;
}

int clear_way(Launcher *self, View *view, PyObject *stream)
{
    PyObject *history = history_of(view->storage);
    if (history == NULL)
        return 0;
    if (PyObject_TypeCheck(view->storage, Storage_guarded.owner) &&
        *field(view->storage, &Storage_guarded) != Py_False) /* borrowed or read-only memory */
        return 0;
    Py_INCREF(history);
    int clear = clear_moment(self, history, &AccessHistory_last_write, stream);
    if (clear == 1)
        clear = clear_moment(self, history, &AccessHistory_theirs, stream);
    view->reads = clear == 1 ? kept(history, &AccessHistory_reads) : NULL;
    Py_DECREF(history);
    if (clear != 1 || view->reads == NULL || !PyDict_CheckExact(view->reads))
        return clear < 0 ? -1 : 0;
    Py_ssize_t readers = PyDict_GET_SIZE(view->reads);
    if (readers >= constants.READERS_KEPT)
        return 0;
    return view->uses & WRITTEN && readers > 0 ? clear_reads(self, view->reads, stream) : 1;
}

/* Whether the stream is behind a moment, or None; -1, perhaps with an exception, if that cannot be told. */
static int is_behind_moment(PyObject *history, const Slot *slot, PyObject *stream)
{
    PyObject *use = kept(history, slot), *other, *serial;
    int behind = use ? moment(use, &other, &serial) : -1;
    if (behind == 1)
        behind = is_behind(stream, other, serial);
    else if (behind == 0)
        behind = 1;
    Py_XDECREF(use);
    return behind;
}

/* Whether the stream is behind all that is known of the memory's use; -1 with an exception. */
static int is_last(View *view, PyObject *history, PyObject *stream)
{
    PyObject *other, *serial;
    Py_ssize_t at = 0;
    int behind = is_behind_moment(history, &AccessHistory_last_write, stream);
    if (behind == 1)
        behind = is_behind_moment(history, &AccessHistory_theirs, stream);
    while (behind == 1 && PyDict_Next(view->reads, &at, &other, &serial))
        behind = is_behind(stream, other, serial);
    return PyErr_Occurred() ? -1 : behind;
}

/* PyTuple_Pack of two, which takes half as long. */
static PyObject *pair(PyObject *first, PyObject *second)
{
    PyObject *both = PyTuple_New(2);
    if (both != NULL) {
        PyTuple_SET_ITEM(both, 0, Py_NewRef(first));
        PyTuple_SET_ITEM(both, 1, Py_NewRef(second));
    }
    return both;
}

/* Remember that the launch wrote the memory; 0 with an exception if that fails. */
static int note_write(View *view, PyObject *history, PyObject *stream, PyObject *use)
{
    /* Other threads may have come in between: what they did must not be forgotten. */
    int last = is_last(view, history, stream);
    if (last < 0)
        return 0;
    if (last > 0) {
        PyDict_Clear(view->reads);
        set_kept(history, &AccessHistory_theirs, Py_None);
        set_kept(history, &AccessHistory_last_write, use);
        return 1;
    }
    PyObject *none = PyObject_CallMethodOneArg(view->storage, names.written_by, use);
    Py_XDECREF(none);
    return none != NULL;
}

int note(View *views, int count, PyObject *stream, PyObject *serial)
{
    PyObject *use = pair(stream, serial);
    if (use == NULL)
        return 0;
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    for (int i = 0; i < count; i++) {
        View *view = &views[i];
        /* Others may have joined it with more of their memory, which then has one history. */
        PyObject *history = Py_XNewRef(history_of(view->storage)), *reads = history ? kept(history, &AccessHistory_reads) : NULL;
        int done = reads != NULL && PyDict_Check(reads);
        if (done) {
            Py_SETREF(view->reads, Py_NewRef(reads));
            done = view->uses & WRITTEN ? note_write(view, history, stream, use) : PyDict_SetItem(reads, stream, serial) == 0;
        }
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "the memory of a launch has no history");
        Py_XDECREF(reads);
        Py_XDECREF(history);
        if (!done && type == NULL)
            PyErr_Fetch(&type, &value, &trace);
        else if (!done)
            PyErr_Clear();
    }
    Py_DECREF(use);
    if (type != NULL)
        PyErr_Restore(type, value, trace);
    return type == NULL;
}

int note_name(PyObject *stream, PyObject *serial, PyObject *label)
{
    PyObject *entry = pair(serial, label), *names = get(stream, &Stream__names);
    int done = entry != NULL && names != NULL && append(names, entry);
    Py_XDECREF(entry);
    Py_XDECREF(names);
    return done;
}

int is_usable(Launcher *self, PyObject *stream)
{
    void *context = NULL;
    PyObject *closed = get(stream, &Stream_closed);
    Py_XDECREF(closed); /* True or False, of which there is one */
    return closed == Py_False && self->current(&context) == 0 && context == self->context;
}

int add_view(Launcher *self, Work *work, PyObject *storage, unsigned uses, PyObject *stream)
{
    if (storage == NULL || storage == Py_None || work->count == MOST_VIEWS)
        return 0;
    View *view = &work->views[work->count++];
    view->storage = Py_NewRef(storage);
    view->reads = NULL;
    view->uses = uses;
    if (clear_way(self, view, stream) != 1)
        return 0;
    for (int i = 0; i < work->count - 1; i++) /* one storage, or storages that overlap */
        if (work->views[i].reads == view->reads && (work->views[i].uses | view->uses) & WRITTEN)
            return 0;
    return 1;
}

int submit_work(Launcher *self, PyObject *stream, Work *work, PyObject *label, Ending *ending)
{
    void *params[MOST_SLOTS], *handle;
    Py_ssize_t slots = PyBytes_GET_SIZE(self->slots);
    PyObject *address = get(stream, &Stream_address);
    int code = SLOW;
    if (address == NULL || !as_pointer(address, &handle))
        goto out;
    for (Py_ssize_t i = 0; i < slots; i++)
        params[i] = &work->values[i];
    for (Py_ssize_t i = 0; i < rest_of(self); i++)
        params[slots + i] = PyBytes_AS_STRING(self->rest) + i * (Py_ssize_t)sizeof(uint64_t);
    for (Py_ssize_t i = 0; i < maps_of(self); i++)
        params[slots + rest_of(self) + i] = work->maps[i].bytes;

    /* The driver waits here if too much is queued, and a callback of somebody's may need the interpreter meanwhile. */
    Py_BEGIN_ALLOW_THREADS
    code = self->launch(self->function, self->grid[0], self->grid[1], self->grid[2], self->block[0], self->block[1],
                        self->block[2], self->shared_bytes, handle, params, NULL);
    if (code == 0 && ending != NULL)
        ending->code = self->record(ending->event, handle);
    Py_END_ALLOW_THREADS
    if (code == FAILED) /* no driver has such a code */
        code = SLOW;
    if (code == LAUNCHED) {
        PyObject *serial = ending != NULL ? Py_NewRef(ending->serial) : get(stream, &Stream_pending);
        if (serial == NULL || !note(work->views, work->count, stream, serial) || !note_name(stream, serial, label))
            code = FAILED;
        Py_XDECREF(serial);
    }
out:
    Py_XDECREF(address);
    return code;
}

int end_work(Work *work, int code)
{
    for (int i = 0; i < work->count; i++) {
        Py_DECREF(work->views[i].storage);
        Py_XDECREF(work->views[i].reads);
    }
    /* What stopped before the launch Python finds again, and says better; but not that the user interrupted. */
    if (code == FAILED || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)))
        return FAILED;
    PyErr_Clear();
    return code;
}

int launch(Launcher *self, PyObject *stream, PyObject *all_arguments, PyObject *label, Ending *ending)
{
    PyObject *const *arguments = &PyTuple_GET_ITEM(all_arguments, 0);
    const char *kinds = PyBytes_AS_STRING(self->kinds), *uses = PyBytes_AS_STRING(self->uses);
    Work work;
    work.count = 0;
    int ready = is_usable(self, stream) && copy_maps(self, arguments, work.maps);
    for (Py_ssize_t i = 0; ready && i < self->count; i++) {
        if (kinds[i] != TENSOR && kinds[i] != PARTITION)
            continue;
        const Slot *slot = Py_TYPE(arguments[i]) == Tensor_storage.owner ? &Tensor_storage : &Partition_storage;
        PyObject *storage = get(arguments[i], slot);
        ready = add_view(self, &work, storage, (unsigned)uses[i], stream);
        Py_XDECREF(storage);
    }
    memset(work.values, 0, (size_t)PyBytes_GET_SIZE(self->slots) * sizeof work.values[0]);
    ready = ready && pack_all(self, arguments, work.values, NULL);
    return end_work(&work, ready ? submit_work(self, stream, &work, label, ending) : SLOW);
}

static PyObject *launcher_call(Launcher *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyTuple_CheckExact(args[1]) || PyTuple_GET_SIZE(args[1]) != self->count) {
        PyErr_SetString(PyExc_TypeError, "expected a stream, a tuple of the kernel's arguments, and a label");
        return NULL;
    }
    int code = launch(self, args[0], args[1], args[2], NULL);
    return code == FAILED ? NULL : PyLong_FromLong(code);
}

Launcher *launcher_behind(PyObject *native)
{
    PyObject *self = native != NULL && PyCFunction_Check(native) ? PyCFunction_GET_SELF(native) : NULL;
    return self != NULL && Py_TYPE(self) == launcher_type ? (Launcher *)self : NULL;
}

static PyMethodDef launcher_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))launcher_call, METH_FASTCALL,
     "launch(stream, arguments, label): 0 if it was launched, -1 if nothing was done, or the driver's error code."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot launcher_slots[] = {
    {Py_tp_doc, "Launches of one kernel with arguments of one kind, on one device."},
    {Py_tp_new, launcher_new},
    {Py_tp_dealloc, launcher_dealloc},
    {Py_tp_methods, launcher_methods},
    {0, NULL},
};

static PyType_Spec launcher_spec = {
    .name = "tilekit._native._launch.Launcher",
    .basicsize = sizeof(Launcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = launcher_slots,
};

PyObject *make_launcher_type(void)
{
    PyObject *type = PyType_FromSpec(&launcher_spec);
    launcher_type = (PyTypeObject *)type; /* which the module keeps */
    return type;
}
