/* Memory that comes and goes: new tensors in blocks that are kept, and what collected storages leave. As `allocate` of
 * `tilekit._runtime.allocator`, and `__del__` of storages. */
#include "_launch.h"
#include <limits.h>

enum { MOST_STREAMS = 32 }; /* that are asked about what is to be let go, at a time */

/* An owned storage of a block, the next work of a stream to write it; the reference to the block is taken over. NULL if there is no
 * block, or with an exception. */
static PyObject *new_storage(PyObject *device, PyObject *stream, PyObject *blocks, PyObject *nbytes)
{
    PyObject *storage = instance(&Storage_memory), *reads = PyDict_New();
    PyObject *use = PyTuple_Pack(2, stream, held(stream, &Stream_pending));
    PyObject *leave = PyObject_GetAttr(held(device, &Device_garbage), names.append);
    Py_ssize_t last = PyList_GET_SIZE(blocks) - 1; /* only now: a finalizer may have taken a block */
    if (storage == NULL || reads == NULL || use == NULL || leave == NULL || last < 0) {
        Py_XDECREF(storage);
        Py_XDECREF(reads);
        Py_XDECREF(use);
        Py_XDECREF(leave);
        return NULL;
    }
    *field(storage, &Storage_memory) = PyList_GET_ITEM(blocks, last);
    Py_SET_SIZE(blocks, last); /* the list's reference is the storage's now */
    *field(storage, &Storage_nbytes) = Py_NewRef(nbytes);
    *field(storage, &Storage_device) = Py_NewRef(device);
    *field(storage, &Storage_owner) = Py_NewRef(Py_None);
    *field(storage, &Storage_owned) = Py_NewRef(Py_True);
    *field(storage, &Storage_borrowed) = Py_NewRef(Py_False);
    *field(storage, &Storage_guarded) = Py_NewRef(Py_False);
    *field(storage, &Storage_readonly) = Py_NewRef(Py_None);
    *field(storage, &Storage__free_list) = Py_NewRef(blocks);
    *field(storage, &Storage__leave) = leave;
    *field(storage, &AccessHistory_last_write) = use;
    *field(storage, &AccessHistory_reads) = reads;
    *field(storage, &AccessHistory_theirs) = Py_NewRef(Py_None);
    return storage;
}

static int is_empty(PyObject *queue)
{
    return queue != NULL && PyObject_Size(queue) == 0;
}

/* A new tensor: `item` is a New. NULL, perhaps with an exception, if there is no block of that size, or it is aligned otherwise. */
static PyObject *new_of(PyObject *device, PyObject *stream, PyObject *lists, PyObject *item)
{
    PyObject *nbytes, *layout, *traits;
    uint64_t size;
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "OOO", &nbytes, &layout, &traits) || !small_int(nbytes, &size))
        return NULL;
    PyObject *blocks = PyDict_GetItemWithError(lists, nbytes), *storage = NULL, *tensor = NULL;
    if (blocks == NULL || Py_TYPE(blocks) != FreeList_number.owner)
        return NULL;
    Py_INCREF(blocks);
    int is_quiet = is_empty(held(device, &Device_imports)) && is_empty(held(device, &Device_owners));
    if (is_quiet || let_others_go(device, size))
        storage = new_storage(device, stream, blocks, nbytes);
    if (storage != NULL) {
        uint64_t address = number(*field(storage, &Storage_memory), &Memory_address);
        tensor = address != UINT64_MAX ? new_tensor(storage, address, address, layout) : NULL;
    }
    if (tensor != NULL && held(tensor, &Tensor_traits) != traits)
        Py_CLEAR(tensor);
    Py_XDECREF(storage);
    Py_DECREF(blocks);
    return tensor;
}

PyObject *new_bases(PyObject *tensors, PyObject *new, PyObject *stream)
{
    PyObject *device = held(stream, &Stream_device), *all = device ? held(device, &Device_free_lists) : NULL;
    PyObject *lists = all && held(stream, &Stream_number) ? PyDict_GetItemWithError(all, held(stream, &Stream_number)) : NULL;
    if (lists == NULL || held(device, &Device_garbage) == NULL || !is_empty(held(device, &Device_garbage)) ||
        !is_empty(held(device, &Device_retired))) /* which Python frees first */
        goto otherwise;
    PyObject *bases = PyList_GetSlice(tensors, 0, PyList_GET_SIZE(tensors));
    Py_INCREF(lists);
    for (Py_ssize_t i = 0; bases != NULL && i < PyTuple_GET_SIZE(new); i++) {
        PyObject *tensor = new_of(device, stream, lists, PyTuple_GET_ITEM(new, i));
        if (tensor == NULL || PyList_Append(bases, tensor) != 0)
            Py_CLEAR(bases);
        Py_XDECREF(tensor);
    }
    Py_DECREF(lists);
    if (bases != NULL)
        return bases;
otherwise:
    PyErr_Clear(); /* Python finds it again */
    return NULL;
}

/* new_tensors(tensors, new, stream): see _launch.pyi. */
static PyObject *new_tensors(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of tensors, a tuple of what is new, and a stream");
        return NULL;
    }
    PyObject *bases = new_bases(args[0], args[1], args[2]);
    return bases != NULL ? bases : Py_NewRef(Py_None);
}

/* As `Storage.__del__`, which has the rest: blocks that do not go to their free list. */
static PyObject *leave_storage(PyObject *self, PyObject *Py_UNUSED(none))
{
    PyObject *blocks = *field(self, &Storage__free_list), *memory = *field(self, &Storage_memory);
    PyObject *last = *field(self, &AccessHistory_last_write), *reads = *field(self, &AccessHistory_reads);
    if (*field(self, &Storage__leave) == NULL) /* it was never finished, and has no memory */
        Py_RETURN_NONE;
    if (blocks != NULL && Py_TYPE(blocks) == FreeList_number.owner && held(blocks, &FreeList_closed) == Py_False && memory != NULL &&
        (uint64_t)PyList_GET_SIZE(blocks) < number(blocks, &FreeList_capacity) && *field(self, &AccessHistory_theirs) == Py_None &&
        last != NULL && PyTuple_CheckExact(last) && reads != NULL && PyDict_CheckExact(reads)) {
        PyObject *stream = PyTuple_GET_ITEM(last, 0);
        Py_ssize_t readers = PyDict_GET_SIZE(reads);
        if (number(stream, &Stream_number) == number(blocks, &FreeList_number) &&
            (readers == 0 || (readers == 1 && PyDict_Contains(reads, stream) == 1))) {
            if (PyList_Append(blocks, memory) != 0)
                return NULL;
            Py_RETURN_NONE;
        }
    }
    return PyObject_CallOneArg(helpers.left, self);
}

/* Whether a moment is not known to have passed. */
static int is_ahead(PyObject *stream, PyObject *serial)
{
    PyObject *completed = held(stream, &Stream_completed);
    return completed == NULL || PyLong_AsLongLong(serial) > PyLong_AsLongLong(completed);
}

/* As `Imported.__del__`, but that a storage that is in use is not left in parts: it is kept itself, and may be met again. */
static PyObject *leave_imported(PyObject *self, PyObject *Py_UNUSED(none))
{
    PyObject *owner = *field(self, &Storage_owner), *history = held(self, &Imported_history), *leave = *field(self, &Storage__leave);
    PyObject *reads = NULL, *last = NULL, *reader, *serial;
    Py_ssize_t at = 0;
    if (history != NULL && PyObject_TypeCheck(history, AccessHistory_last_write.owner)) {
        reads = *field(history, &AccessHistory_reads);
        last = *field(history, &AccessHistory_last_write);
    }
    if (owner == NULL || owner == Py_None || leave == NULL || reads == NULL || !PyDict_CheckExact(reads) || last == NULL ||
        (last != Py_None && !PyTuple_CheckExact(last)))
        return PyObject_CallOneArg(helpers.left_imported, self);
    int ahead = last != Py_None && is_ahead(PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1));
    while (!ahead && PyDict_Next(reads, &at, &reader, &serial))
        ahead = is_ahead(reader, serial);
    if (!ahead)
        Py_RETURN_NONE;
    put(self, &Imported_kept, Py_NewRef(Py_True));
    return PyObject_CallOneArg(leave, self);
}

/* A moment behind which an item of `waiting` can be let go. */
typedef struct {
    PyObject *stream, *serial; /* owned */
    Py_ssize_t item;
} Moment;

/* How far a stream is known to have come. */
typedef struct {
    PyObject *stream; /* one of the moments' */
    long long passed, ahead; /* a serial that has passed; one that has not */
    Py_ssize_t below; /* of the items, only one before this is asked for next */
} Reached;

typedef struct {
    Moment *moments;
    Py_ssize_t count, room;
    Reached known[MOST_STREAMS];
    Py_ssize_t streams;
} Survey;

/* Note a moment; 0 with an exception. */
static int add_moment(Survey *survey, PyObject *stream, PyObject *serial, Py_ssize_t item)
{
    if (survey->count == survey->room) {
        Py_ssize_t room = 2 * survey->room + 64;
        Moment *moments = PyMem_Resize(survey->moments, Moment, room);
        if (moments == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        survey->moments = moments;
        survey->room = room;
    }
    survey->moments[survey->count++] = (Moment){Py_NewRef(stream), Py_NewRef(serial), item};
    return 1;
}

/* Note the moments of an item: of a storage, if nothing else holds it, those of its uses; 0 with an exception. */
static int add_item(Survey *survey, PyObject *item, Py_ssize_t at)
{
    if (PyTuple_CheckExact(item))
        return add_moment(survey, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1), at);
    PyObject *history = held(item, &Imported_history), *last, *reader, *serial;
    Py_ssize_t next = 0;
    if (Py_REFCNT(item) > 1 || history == NULL)
        return 1;
    last = *field(history, &AccessHistory_last_write);
    int added = last == Py_None || add_moment(survey, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1), at);
    while (added && PyDict_Next(*field(history, &AccessHistory_reads), &next, &reader, &serial))
        added = add_moment(survey, reader, serial, at);
    return added;
}

/* What is known of a moment's stream; NULL if there are too many streams: these are looked at the next time. */
static Reached *reached_by(Survey *survey, PyObject *stream)
{
    for (Py_ssize_t i = 0; i < survey->streams; i++)
        if (survey->known[i].stream == stream)
            return &survey->known[i];
    return NULL;
}

/* Ask for a moment, after which its stream is asked for one of the first half of the items before; 0 with an exception. */
static int ask(Reached *reached, const Moment *moment)
{
    PyObject *passed = PyObject_CallMethodOneArg(moment->stream, names.passed, moment->serial);
    *(passed == Py_True ? &reached->passed : &reached->ahead) = PyLong_AsLongLong(moment->serial);
    reached->below = moment->item / 2 + 1;
    Py_XDECREF(passed);
    return passed != NULL;
}

/* Find out how far the streams of all moments have come, by a few questions; 0 with an exception. */
static int look(Survey *survey, Py_ssize_t items)
{
    for (Py_ssize_t i = 0; i < survey->count; i++) {
        const Moment *moment = &survey->moments[i];
        if (survey->streams == MOST_STREAMS || !is_ahead(moment->stream, moment->serial) || reached_by(survey, moment->stream) != NULL)
            continue;
        Reached *reached = &survey->known[survey->streams++];
        *reached = (Reached){moment->stream, -1, LLONG_MAX, items};
        if (!ask(reached, moment))
            return 0;
        reached->below = reached->ahead == LLONG_MAX ? items : 0; /* where the first has not passed, none has */
    }
    for (Py_ssize_t i = survey->count - 1; i >= 0; i--) {
        const Moment *moment = &survey->moments[i];
        Reached *reached = reached_by(survey, moment->stream);
        long long serial = PyLong_AsLongLong(moment->serial);
        if (reached != NULL && is_ahead(moment->stream, moment->serial) && serial > reached->passed && serial < reached->ahead &&
            moment->item < reached->below && !ask(reached, moment))
            return 0;
    }
    return 1;
}

/* Whether a moment has not passed, as far as is known. */
static int is_left(Survey *survey, PyObject *stream, PyObject *serial)
{
    const Reached *reached = reached_by(survey, stream);
    return is_ahead(stream, serial) && (reached == NULL || PyLong_AsLongLong(serial) > reached->passed);
}

/* Whether an item stays: the memory of a storage may have been met, and used, since its moments were noted. */
static int stays(Survey *survey, PyObject *item)
{
    if (PyTuple_CheckExact(item))
        return is_left(survey, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1));
    PyObject *history = held(item, &Imported_history), *last, *reader, *serial;
    Py_ssize_t next = 0;
    if (Py_REFCNT(item) > 1 || history == NULL)
        return 1;
    last = *field(history, &AccessHistory_last_write);
    int left = last != Py_None && is_left(survey, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1));
    while (!left && PyDict_Next(*field(history, &AccessHistory_reads), &next, &reader, &serial))
        left = is_left(survey, reader, serial);
    return left;
}

/* in_use(waiting): see _launch.pyi. */
static PyObject *in_use(PyObject *Py_UNUSED(module), PyObject *waiting)
{
    Py_ssize_t count = PyList_CheckExact(waiting) ? PyList_GET_SIZE(waiting) : 0;
    Survey survey = {.count = 0};
    PyObject *left = PyList_New(0);
    int done = left != NULL;
    for (Py_ssize_t i = 0; done && i < count; i++)
        done = add_item(&survey, PyList_GET_ITEM(waiting, i), i);
    done = done && look(&survey, count);
    for (Py_ssize_t i = 0; done && i < count; i++) {
        PyObject *item = PyList_GET_ITEM(waiting, i);
        if (stays(&survey, item)) {
            done = PyList_Append(left, item) == 0;
            continue;
        }
        PyList_SET_ITEM(waiting, i, Py_NewRef(Py_None));
        Py_DECREF(item); /* with nothing run in between: nobody can have met it */
    }
    for (Py_ssize_t i = 0; i < survey.count; i++) {
        Py_DECREF(survey.moments[i].stream);
        Py_DECREF(survey.moments[i].serial);
    }
    PyMem_Free(survey.moments);
    if (!done)
        Py_CLEAR(left);
    return left;
}

PyObject *make_finalizers(void)
{
    static PyMethodDef storage = {"__del__", leave_storage, METH_NOARGS, NULL};
    static PyMethodDef imported = {"__del__", leave_imported, METH_NOARGS, NULL};
    PyObject *first = PyDescr_NewMethod(Storage_memory.owner, &storage), *second = PyDescr_NewMethod(Imported_history.owner, &imported);
    PyObject *both = first && second ? PyTuple_Pack(2, first, second) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(second);
    return both;
}

PyMethodDef memory_functions[] = {
    {"in_use", in_use, METH_O, "See _launch.pyi."},
    {"new_tensors", (PyCFunction)(void (*)(void))new_tensors, METH_FASTCALL, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};
