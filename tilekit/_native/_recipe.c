/* What a ready-made kernel is known to launch: as `Recipe` of `tilekit.kernels._recipe`, but for the new tensors.
 *
 * All parameters are those of the time when it was noted; only the addresses are others. They follow from those of its bases: the tensors
 * that it is given, and the new ones. */
#include "_launch.h"
#include <string.h>

/* An argument of a launch that is a tensor or a partition. */
typedef struct {
    Py_ssize_t base, slot, argument; /* which of the bases it is a view of; where its address goes; its number */
    int64_t shift;                   /* how far behind the base's, in bytes */
    unsigned uses;
} Place;

typedef struct {
    Launcher *launcher;
    PyObject *arguments; /* a tuple: of each argument that has a tensor map what a kernel gets of it */
    PyObject *label;
    uint64_t *values;
    Place *places;
    Py_ssize_t place_count;
} Known;

typedef struct {
    PyObject_HEAD
    Known *known;
    Py_ssize_t count;
} Launches;

static void forget(Known *known)
{
    Py_XDECREF(known->launcher);
    Py_XDECREF(known->arguments);
    Py_XDECREF(known->label);
    PyMem_Free(known->values);
    PyMem_Free(known->places);
}

static void launches_dealloc(Launches *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < self->count; i++)
        forget(&self->known[i]);
    PyMem_Free(self->known);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* What a kernel gets of the arguments that have tensor maps, a new reference; NULL with an exception. */
static PyObject *flats_of(Launcher *launcher, PyObject *arguments)
{
    PyObject *flats = PyTuple_New(maps_of(launcher));
    for (Py_ssize_t i = 0; flats != NULL && i < maps_of(launcher); i++) {
        Py_ssize_t number = mapped(launcher, i);
        PyObject *flat = flat_of(PyBytes_AS_STRING(launcher->kinds)[number], PyTuple_GET_ITEM(arguments, number));
        if (flat == NULL || !PyTuple_CheckExact(flat)) {
            Py_XDECREF(flat);
            Py_CLEAR(flats);
            break;
        }
        PyTuple_SET_ITEM(flats, i, flat);
    }
    return flats;
}

/* Note one launch: its native method, its arguments, of each that is a tensor or a partition (base, shift), else None, and its label. 0,
 * perhaps with an exception, if it is none that is launched here. */
static int know(Known *known, PyObject *item)
{
    PyObject *native, *arguments, *places, *label;
    if (!PyArg_ParseTuple(item, "OO!O!U", &native, &PyTuple_Type, &arguments, &PyTuple_Type, &places, &label))
        return 0;
    Launcher *launcher = launcher_behind(native);
    Py_ssize_t firsts[MOST_VIEWS];
    if (launcher == NULL || launcher->record == NULL || launcher->count != PyTuple_GET_SIZE(arguments) ||
        launcher->count != PyTuple_GET_SIZE(places))
        return 0;
    known->launcher = (Launcher *)Py_NewRef((PyObject *)launcher);
    known->label = Py_NewRef(label);
    known->arguments = flats_of(launcher, arguments);
    known->values = PyMem_Calloc((size_t)PyBytes_GET_SIZE(launcher->slots) + 1, sizeof known->values[0]);
    known->places = PyMem_Calloc((size_t)launcher->count + 1, sizeof known->places[0]);
    if (known->arguments == NULL || known->values == NULL || known->places == NULL ||
        !pack_all(launcher, &PyTuple_GET_ITEM(arguments, 0), known->values, firsts))
        return 0;
    for (Py_ssize_t i = 0; i < launcher->count; i++) {
        char kind = PyBytes_AS_STRING(launcher->kinds)[i];
        if (kind != TENSOR && kind != PARTITION)
            continue;
        Place *place = &known->places[known->place_count];
        long long shift;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(places, i), "nL", &place->base, &shift))
            return 0;
        place->shift = shift;
        place->slot = firsts[i];
        place->argument = i;
        place->uses = (unsigned)PyBytes_AS_STRING(launcher->uses)[i];
        known->place_count++;
    }
    return 1;
}

/* Launches(items): see _launch.pyi. */
static PyObject *launches_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *items;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &items) || kwargs != NULL)
        return NULL;
    Launches *self = (Launches *)type->tp_alloc(type, 0);
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (self == NULL || (self->known = PyMem_Calloc((size_t)count + 1, sizeof self->known[0])) == NULL) {
        Py_XDECREF(self);
        return PyErr_NoMemory();
    }
    for (; self->count < count; self->count++)
        if (!know(&self->known[self->count], PyTuple_GET_ITEM(items, self->count))) {
            forget(&self->known[self->count]);
            Py_DECREF(self);
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a launch that is not made by native code");
            return NULL;
        }
    return (PyObject *)self;
}

/* The address of a tensor; 0, perhaps with an exception, if it is none, or has no memory. */
static uint64_t address_of(PyObject *tensor)
{
    PyObject *storage = held(tensor, &Tensor_storage), *flat = storage ? get(tensor, &Tensor_flat) : NULL;
    uint64_t address = 0;
    int known = flat != NULL && storage != Py_None && PyTuple_CheckExact(flat) && small_int(PyTuple_GET_ITEM(flat, 0), &address);
    Py_XDECREF(flat);
    return known ? address : 0;
}

/* The tensor maps of a launch; 0, perhaps with an exception, if not all are known. */
static int known_maps(const Known *known, const uint64_t *values, Map *maps)
{
    for (Py_ssize_t i = 0; i < maps_of(known->launcher); i++) {
        const Place *place = known->places;
        while (place->argument != mapped(known->launcher, i))
            place++;
        PyObject *before = PyTuple_GET_ITEM(known->arguments, i), *first = PyLong_FromUnsignedLongLong(values[place->slot]);
        PyObject *flat = first ? PyTuple_New(PyTuple_GET_SIZE(before)) : NULL;
        if (flat == NULL) {
            Py_XDECREF(first);
            return 0;
        }
        PyTuple_SET_ITEM(flat, 0, first);
        for (Py_ssize_t j = 1; j < PyTuple_GET_SIZE(before); j++)
            PyTuple_SET_ITEM(flat, j, Py_NewRef(PyTuple_GET_ITEM(before, j)));
        int found = copy_map(known->launcher, i, flat, &maps[i]);
        Py_DECREF(flat);
        if (!found)
            return 0;
    }
    return 1;
}

/* Launch one; as `launch`. */
static int launch_known(void *which, PyObject *bases, PyObject *stream, Ending *ending)
{
    const Known *known = which;
    Launcher *launcher = known->launcher;
    Work work;
    work.count = 0;
    memcpy(work.values, known->values, (size_t)PyBytes_GET_SIZE(launcher->slots) * sizeof work.values[0]);
    int ready = is_usable(launcher, stream);
    for (Py_ssize_t i = 0; ready && i < known->place_count; i++) {
        const Place *place = &known->places[i];
        PyObject *base = place->base < PyList_GET_SIZE(bases) ? PyList_GET_ITEM(bases, place->base) : NULL;
        uint64_t address = base ? address_of(base) : 0;
        work.values[place->slot] = address + (uint64_t)place->shift;
        ready = address != 0 && add_view(launcher, &work, held(base, &Tensor_storage), place->uses, stream);
    }
    ready = ready && known_maps(known, work.values, work.maps);
    return end_work(&work, ready ? submit_work(launcher, stream, &work, known->label, ending) : SLOW);
}

static PyTypeObject *launches_type;

int are_launches(PyObject *object)
{
    return Py_TYPE(object) == launches_type;
}

Py_ssize_t submit_launches(PyObject *launches, PyObject *bases, PyObject *stream, PyObject *seconds, PyObject **serial, Py_ssize_t *count)
{
    Launches *self = (Launches *)launches;
    Py_ssize_t done = 0;
    *count = self->count;
    Submitted end = {NULL, NULL};
    for (; done < self->count - 1; done++) {
        int code = launch_known(&self->known[done], bases, stream, NULL);
        if (code == FAILED)
            return -1;
        if (code != LAUNCHED)
            return done;
    }
    if (done == self->count)
        return done;
    Launcher *launcher = self->known[done].launcher;
    int launched = submit_marked(launcher, stream, launch_known, &self->known[done], bases, &end);
    double polled = seconds == Py_None ? launcher->spin_s : PyFloat_AS_DOUBLE(seconds);
    if (launched > 0 && polled > 0 && is_over(&end, stream, polled))
        Py_SETREF(end.serial, PyLong_FromLong(0));
    Py_XDECREF(end.mark);
    if (launched < 0 || PyErr_Occurred()) {
        Py_XDECREF(end.serial);
        return -1;
    }
    *serial = end.serial;
    return done + (launched > 0);
}

/* launches.submit(bases, stream, seconds): see _launch.pyi. */
static PyObject *launches_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyList_CheckExact(args[0]) || Py_TYPE(args[1]) != Stream_pending.owner ||
        (args[2] != Py_None && !PyFloat_CheckExact(args[2]))) {
        PyErr_SetString(PyExc_TypeError, "expected a list of tensors, a stream, and for how many seconds to poll");
        return NULL;
    }
    PyObject *serial = NULL;
    Py_ssize_t count, done = submit_launches(self, args[0], args[1], args[2], &serial, &count);
    return done < 0 ? NULL : Py_BuildValue("nN", done, serial ? serial : Py_NewRef(Py_None));
}

PyObject *make_launches_type(void)
{
    static PyMethodDef methods[] = {
        {"submit", (PyCFunction)(void (*)(void))launches_submit, METH_FASTCALL, "See _launch.pyi."},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "What a ready-made kernel is known to launch."},
        {Py_tp_new, launches_new},
        {Py_tp_dealloc, launches_dealloc},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "tilekit._native._launch.Launches",
        .basicsize = sizeof(Launches),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
        .slots = slots,
    };
    PyObject *type = PyType_FromSpec(&spec);
    launches_type = (PyTypeObject *)type; /* which the module keeps */
    return type;
}
