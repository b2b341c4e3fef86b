/* Memory that comes and goes: new tensors in blocks that are kept, and what collected storages leave. As `allocate` of
 * `tilekit._runtime.allocator`, and `__del__` of storages. */
#include "_launch.h"
#include <limits.h>

enum { MOST_STREAMS = 32 }; /* of those that use what is to be let go */

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

/* Leave, to `leave`, an owner and its history, until a moment of a stream has passed, if it is not known to have; 0 with an exception. */
static int leave_until(PyObject *leave, PyObject *stream, PyObject *serial, PyObject *owner, PyObject *history)
{
    PyObject *completed = held(stream, &Stream_completed);
    if (completed != NULL && PyLong_AsLongLong(serial) <= PyLong_AsLongLong(completed))
        return 1;
    PyObject *items[] = {stream, serial, owner, history}, *left = PyTuple_New(4), *none;
    for (Py_ssize_t i = 0; left != NULL && i < 4; i++)
        PyTuple_SET_ITEM(left, i, Py_NewRef(items[i]));
    none = left ? PyObject_CallOneArg(leave, left) : NULL;
    Py_XDECREF(left);
    Py_XDECREF(none);
    return none != NULL;
}

/* As `Imported.__del__`, which has the rest: memory that nobody keeps alive. */
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
    reads = PyDict_GET_SIZE(reads) > 1 ? PyDict_Copy(reads) : Py_NewRef(reads); /* others may read it meanwhile */
    Py_INCREF(last);
    int done = reads != NULL;
    while (done && PyDict_Next(reads, &at, &reader, &serial)) {
        Py_INCREF(reader);
        Py_INCREF(serial);
        done = leave_until(leave, reader, serial, owner, history);
        Py_DECREF(reader);
        Py_DECREF(serial);
    }
    if (done && last != Py_None)
        done = leave_until(leave, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1), owner, history);
    Py_DECREF(last);
    Py_XDECREF(reads);
    return done ? Py_NewRef(Py_None) : NULL;
}

/* How far a stream is known to have come. */
typedef struct {
    PyObject *stream; /* of an item that is waited for */
    long long passed, ahead; /* a serial that has passed; one that has not */
    Py_ssize_t below; /* of the items, only one before this is asked for next */
} Reached;

/* Ask for an item's moment, after which its stream is asked for one of the first half of the items before; 0 with an exception. */
static int ask(Reached *reached, PyObject *item, Py_ssize_t at)
{
    PyObject *passed = PyObject_CallMethodOneArg(reached->stream, names.passed, PyTuple_GET_ITEM(item, 1));
    long long serial = PyLong_AsLongLong(PyTuple_GET_ITEM(item, 1));
    *(passed == Py_True ? &reached->passed : &reached->ahead) = serial;
    reached->below = at / 2 + 1;
    Py_XDECREF(passed);
    return passed != NULL;
}

/* in_use(waiting): see _launch.pyi. */
static PyObject *in_use(PyObject *Py_UNUSED(module), PyObject *waiting)
{
    Reached known[MOST_STREAMS], *reached;
    Py_ssize_t streams = 0, count = PyList_CheckExact(waiting) ? PyList_GET_SIZE(waiting) : 0;
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left != NULL && i < count; i++) { /* where the first has not passed, none has */
        PyObject *item = PyList_GET_ITEM(waiting, i), *stream = PyTuple_GET_ITEM(item, 0);
        for (reached = known; reached < known + streams && reached->stream != stream; reached++)
            ;
        if (reached < known + streams)
            continue;
        PyObject *completed = held(stream, &Stream_completed);
        if (streams == MOST_STREAMS || completed == NULL) {
            Py_DECREF(left);
            return PyObject_CallOneArg(helpers.in_use, waiting);
        }
        *reached = (Reached){stream, PyLong_AsLongLong(completed), LLONG_MAX, count};
        streams++;
        if (PyLong_AsLongLong(PyTuple_GET_ITEM(item, 1)) > reached->passed && !ask(reached, item, count))
            Py_CLEAR(left);
        reached->below = reached->ahead == LLONG_MAX ? count : 0;
    }
    for (Py_ssize_t i = count - 1; left != NULL && i >= 0; i--) {
        PyObject *item = PyList_GET_ITEM(waiting, i);
        long long serial = PyLong_AsLongLong(PyTuple_GET_ITEM(item, 1));
        for (reached = known; reached->stream != PyTuple_GET_ITEM(item, 0); reached++)
            ;
        if (serial > reached->passed && serial < reached->ahead && i < reached->below && !ask(reached, item, i))
            Py_CLEAR(left);
        if (left != NULL && serial > reached->passed && PyList_Append(left, item) != 0)
            Py_CLEAR(left);
    }
    if (left != NULL && PyList_Reverse(left) != 0)
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
