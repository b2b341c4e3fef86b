/* Memory of other libraries on a GPU: the storage that has it, and the tensor over it. As `storage_of` of `tilekit._runtime.ranges`,
 * and `Layout.tensor`.
 *
 * Only memory in a range that is known already is looked up here, and given a storage if it has none; others Python adds. */
#include "_launch.h"

enum { DEVICES_COUNTED = 64 };

/* What a weak reference refers to, a new reference; NULL, and no exception, if it is gone. */
static PyObject *referent(PyObject *reference)
{
    PyObject *object = NULL;
    if (reference == NULL || !PyWeakref_Check(reference))
        return NULL;
#if PY_VERSION_HEX >= 0x030D0000
    (void)PyWeakref_GetRef(reference, &object);
    return object;
#else
    object = PyWeakref_GetObject(reference);
    return object == Py_None ? NULL : Py_XNewRef(object);
#endif
}

/* The range that has all bytes from `low` to `high`, borrowed; NULL if none has. */
static PyObject *range_at(PyObject *entries, uint64_t low, uint64_t high)
{
    Py_ssize_t first = 0, last = PyList_GET_SIZE(entries);
    while (first < last) {
        Py_ssize_t middle = (first + last) / 2;
        if (number(PyList_GET_ITEM(entries, middle), &Range_low) <= low)
            first = middle + 1;
        else
            last = middle;
    }
    PyObject *entry = first ? PyList_GET_ITEM(entries, first - 1) : NULL;
    uint64_t end = entry ? number(entry, &Range_high) : 0;
    return end != UINT64_MAX && high <= end ? entry : NULL;
}

/* A living part of a range that has the bytes, and can be viewed in elements of that size, a new reference; NULL if none can. */
static PyObject *part_at(PyObject *parts, uint64_t low, uint64_t high, uint64_t itemsize)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); i++) {
        PyObject *storage = referent(PyList_GET_ITEM(parts, i));
        if (storage == NULL)
            continue;
        if ((Py_TYPE(storage) == Imported_history.owner || Py_TYPE(storage) == Storage_guarded.owner) &&
            *field(storage, &Storage_guarded) == Py_False) {
            PyObject *memory = *field(storage, &Storage_memory);
            uint64_t base = memory ? number(memory, &Memory_address) : UINT64_MAX, size = memory ? number(memory, &Memory_nbytes) : 0;
            if (base <= low && high <= base + size && (low - base) % itemsize == 0)
                return storage;
        }
        Py_DECREF(storage);
    }
    return NULL;
}

/* The memory of a whole range, which all storages of it share, a new reference; NULL with an exception. */
static PyObject *memory_of(PyObject *entry, uint64_t low, uint64_t nbytes)
{
    PyObject *memory = held(entry, &Range_memory);
    if (memory != NULL && number(memory, &Memory_address) == low && number(memory, &Memory_nbytes) == nbytes)
        return Py_NewRef(memory);
    PyObject *address = PyLong_FromUnsignedLongLong(low), *size = PyLong_FromUnsignedLongLong(nbytes);
    memory = address && size ? instance(&Memory_address) : NULL;
    if (memory == NULL) {
        Py_XDECREF(address);
        Py_XDECREF(size);
        return NULL;
    }
    put(memory, &Memory_address, address);
    put(memory, &Memory_nbytes, size);
    put(memory, &Memory_raw, Py_NewRef(Py_None));
    put(memory, &Memory_shadow, Py_NewRef(Py_None));
    put(entry, &Range_memory, Py_NewRef(memory));
    return memory;
}

/* A new storage of the bytes of an array, which are those of a known range with that history; NULL, perhaps with an exception. */
static PyObject *new_part(PyObject *device, PyObject *entry, PyObject *history, PyObject *array, uint64_t low, uint64_t nbytes)
{
    PyObject *ranges = held(device, &Device_ranges), *leave = held(ranges, &Ranges_leave), *size;
    PyObject *memory = leave ? memory_of(entry, low, nbytes) : NULL, *storage = memory ? instance(&Imported_history) : NULL;
    if (storage == NULL || (size = held(memory, &Memory_nbytes)) == NULL) {
        Py_XDECREF(memory);
        Py_XDECREF(storage); /* which has no owner: nothing is left of it */
        return NULL;
    }
    *field(storage, &Storage_memory) = memory;
    *field(storage, &Storage_nbytes) = Py_NewRef(size);
    *field(storage, &Storage_device) = Py_NewRef(device);
    *field(storage, &Storage_owner) = Py_NewRef(array);
    *field(storage, &Storage_owned) = Py_NewRef(Py_False);
    *field(storage, &Storage_borrowed) = Py_NewRef(Py_False);
    *field(storage, &Storage_guarded) = Py_NewRef(Py_False);
    *field(storage, &Storage_readonly) = Py_NewRef(Py_None);
    *field(storage, &Storage__free_list) = Py_NewRef(Py_None);
    *field(storage, &Storage__leave) = Py_NewRef(leave);
    *field(storage, &Imported_history) = Py_NewRef(history);
    *field(storage, &Imported_kept) = Py_NewRef(Py_False);
    *field(storage, &Imported_view) = Py_NewRef(Py_None);

    PyObject *reference = PyWeakref_NewRef(storage, NULL), *parts = held(entry, &Range_parts);
    int added = 0;
    if (reference != NULL && parts != NULL && PyList_CheckExact(parts) && held(entry, &Range_ranges) == ranges) {
        for (Py_ssize_t i = 0; !added && i < PyList_GET_SIZE(parts); i++) {
            PyObject *other = referent(PyList_GET_ITEM(parts, i));
            if (other == NULL)
                added = PyList_SetItem(parts, i, Py_NewRef(reference)) == 0;
            Py_XDECREF(other);
        }
        if (!added)
            added = PyList_Append(parts, reference) == 0;
    }
    Py_XDECREF(reference);
    if (!added)
        Py_CLEAR(storage);
    return storage;
}

int let_others_go(PyObject *device, uint64_t nbytes)
{
    static struct {
        uint64_t storages, bytes;
    } counts[DEVICES_COUNTED];
    uint64_t at = number(device, &Device_ordinal) % DEVICES_COUNTED;
    PyObject *owners = held(device, &Device_owners);
    uint64_t many = (uint64_t)constants.MANY + (owners != NULL && PyList_CheckExact(owners) ? (uint64_t)PyList_GET_SIZE(owners) : 0);
    counts[at].bytes += nbytes;
    if (++counts[at].storages <= many && counts[at].bytes <= (uint64_t)constants.MUCH)
        return 1;
    counts[at].storages = counts[at].bytes = 0;
    PyObject *none = PyObject_CallMethodNoArgs(device, names.collect);
    Py_XDECREF(none);
    return none != NULL;
}

/* Remember that a library has used the memory, in a stream: whoever comes later waits for that. As `used` of
 * `tilekit._runtime.ranges`; 0, perhaps with an exception, if that is not done. */
static int note_theirs(PyObject *history, PyObject *stream, PyObject *pending)
{
    static PyObject *last; /* a moment, mostly the same for all arguments of a call */
    PyObject *before = *field(history, &AccessHistory_theirs);
    if (pending == NULL || before == NULL)
        return 0;
    if (before != Py_None) {
        if (!PyTuple_CheckExact(before) || PyTuple_GET_SIZE(before) != 2)
            return 0;
        PyObject *other = PyTuple_GET_ITEM(before, 0), *serial = PyTuple_GET_ITEM(before, 1);
        if (other != stream && !is_behind(stream, other, serial))
            return 0;
    }
    if (last == NULL || PyTuple_GET_ITEM(last, 0) != stream || PyTuple_GET_ITEM(last, 1) != pending) {
        PyObject *use = PyTuple_Pack(2, stream, pending);
        if (use == NULL)
            return 0;
        Py_XSETREF(last, use);
    }
    if (before != last)
        Py_SETREF(*field(history, &AccessHistory_theirs), Py_NewRef(last));
    return 1;
}

PyObject *new_tensor(PyObject *storage, uint64_t address, uint64_t base, PyObject *layout)
{
    PyObject *tail = held(layout, &Layout_tail);
    if (tail == NULL || !PyTuple_CheckExact(tail))
        return NULL;
    PyObject *known = address == base ? held(*field(storage, &Storage_memory), &Memory_address) : NULL;
    PyObject *flat = PyTuple_New(1 + PyTuple_GET_SIZE(tail)), *first = known ? Py_NewRef(known) : PyLong_FromUnsignedLongLong(address);
    PyObject *offset = PyLong_FromUnsignedLongLong((address - base) / number(layout, &Layout_itemsize));
    PyObject *tensor = flat && first && offset ? instance(&Tensor_storage) : NULL;
    if (tensor == NULL) {
        Py_XDECREF(flat);
        Py_XDECREF(first);
        Py_XDECREF(offset);
        return NULL;
    }
    PyTuple_SET_ITEM(flat, 0, first);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tail); i++)
        PyTuple_SET_ITEM(flat, 1 + i, Py_NewRef(PyTuple_GET_ITEM(tail, i)));
    put(tensor, &Tensor_flat, flat);
    put(tensor, &Tensor_offset, offset);
    put(tensor, &Tensor_storage, Py_NewRef(storage));
    put(tensor, &Tensor_shape, Py_XNewRef(held(layout, &Layout_shape)));
    put(tensor, &Tensor_strides, Py_XNewRef(held(layout, &Layout_strides)));
    put(tensor, &Tensor_dtype, Py_XNewRef(held(layout, &Layout_dtype)));
    if (address % 16 == 0) { /* else they are worked out when they are asked for */
        PyObject *device = *field(storage, &Storage_device);
        if (held(layout, &Layout_device) != device) {
            PyObject *traits = PyObject_GetAttr(tensor, names.traits);
            if (traits == NULL) {
                Py_DECREF(tensor);
                return NULL;
            }
            put(layout, &Layout_device, Py_NewRef(device));
            put(layout, &Layout_traits, traits);
        }
        put(tensor, &Tensor_traits, Py_XNewRef(held(layout, &Layout_traits)));
    }
    return tensor;
}

/* The tensor that was made of a storage last, if it is the same, a new reference; or NULL. */
static PyObject *same_view(PyObject *storage, uint64_t address, PyObject *layout)
{
    PyObject *tensor = referent(held(storage, &Imported_view)), *flat = tensor ? held(tensor, &Tensor_flat) : NULL;
    uint64_t first;
    if (flat != NULL && small_int(PyTuple_GET_ITEM(flat, 0), &first) && first == address &&
        held(tensor, &Tensor_shape) == held(layout, &Layout_shape) && held(tensor, &Tensor_strides) == held(layout, &Layout_strides) &&
        held(tensor, &Tensor_dtype) == held(layout, &Layout_dtype))
        return tensor;
    Py_XDECREF(tensor);
    return NULL;
}

/* The serial behind all that the stream has; of one that may be gone by the time that somebody waits a mark is made. A new reference;
 * NULL, perhaps with an exception. As `Stream.moment`. */
static PyObject *end_of(PyObject *stream, int lasts)
{
    if (lasts || held(stream, &Stream__stable) == Py_True)
        return Py_XNewRef(held(stream, &Stream_pending));
    Launcher *launcher = launcher_at(stream);
    PyObject *mark = launcher ? mark_end(stream, launcher) : NULL, *serial = mark ? PyLong_FromLongLong(serial_of(mark)) : NULL;
    Py_XDECREF(mark);
    return serial;
}

PyObject *imported(PyObject *array, uint64_t address, PyObject *layout, PyObject *stream, int lasts, int kept)
{
    PyObject *device = held(stream, &Stream_device), *ranges = device ? held(device, &Device_ranges) : NULL;
    PyObject *entries = ranges ? held(ranges, &Ranges_entries) : NULL, *left = ranges ? held(ranges, &Ranges_left) : NULL;
    uint64_t itemsize = number(layout, &Layout_itemsize), before = number(layout, &Layout_before);
    uint64_t behind = number(layout, &Layout_behind), low = address - before, high = address + behind;
    if (entries == NULL || !PyList_CheckExact(entries) || left == NULL || PyObject_Size(left) != 0 || itemsize == UINT64_MAX ||
        before == UINT64_MAX || behind == UINT64_MAX || address % itemsize != 0)
        return NULL;
    PyObject *entry = range_at(entries, low, high), *history = entry ? referent(held(entry, &Range_order)) : NULL;
    PyObject *parts = entry ? held(entry, &Range_parts) : NULL, *storage = NULL, *tensor = NULL;
    if (history == NULL || !PyObject_TypeCheck(history, AccessHistory_last_write.owner) || parts == NULL ||
        !PyList_CheckExact(parts)) {
        Py_XDECREF(history);
        return NULL;
    }
    Py_INCREF(entry);
    storage = part_at(parts, low, high, itemsize);
    int is_new = storage == NULL;
    if (is_new && (low != number(entry, &Range_low) || high != number(entry, &Range_high))) { /* which may be over */
        Py_DECREF(history);
        Py_DECREF(entry);
        return NULL;
    }
    if (is_new)
        storage = new_part(device, entry, history, array, low, high - low);
    PyObject *end = storage != NULL ? end_of(stream, lasts) : NULL;
    if (end != NULL && note_theirs(history, stream, end)) {
        int is_imported = Py_TYPE(storage) == Imported_history.owner;
        tensor = is_imported && !is_new ? same_view(storage, address, layout) : NULL;
        if (tensor == NULL) {
            tensor = new_tensor(storage, address, number(*field(storage, &Storage_memory), &Memory_address), layout);
            PyObject *view = tensor && is_imported && kept ? PyWeakref_NewRef(tensor, NULL) : NULL;
            if (view != NULL)
                put(storage, &Imported_view, view);
            else if (PyErr_Occurred())
                Py_CLEAR(tensor);
        }
    }
    Py_XDECREF(end);
    if (tensor != NULL && is_new && !let_others_go(device, high - low))
        Py_CLEAR(tensor);
    Py_XDECREF(storage);
    Py_DECREF(history);
    Py_DECREF(entry);
    return tensor;
}
