/* One stream that waits for a moment of another: as `Timeline.wait_for` and `Timeline.follows`. */
#include "_launch.h"

enum { STREAMS_KEPT = 256 }; /* of how many a stream remembers what it has waited for */

/* The int attribute of a stream. */
static long long number_of(PyObject *stream, const Slot *slot)
{
    PyObject *number = held(stream, slot);
    return number ? PyLong_AsLongLong(number) : -1;
}

/* Whether the stream has waited for that moment of another, or for a later one. */
static int has_seen(PyObject *stream, PyObject *other, long long serial)
{
    PyObject *seen = held(stream, &Stream__seen), *number = held(other, &Stream_number);
    PyObject *last = seen && number && PyDict_CheckExact(seen) ? PyDict_GetItemWithError(seen, number) : NULL;
    return last != NULL && PyLong_AsLongLong(last) >= serial;
}

int is_behind(PyObject *stream, PyObject *other, PyObject *serial)
{
    if (other == stream)
        return 1;
    if (Py_TYPE(other) != Stream_pending.owner)
        return 0;
    long long number = PyLong_AsLongLong(serial);
    return number <= number_of(other, &Stream_completed) ||
           (held(stream, &Stream__stable) == Py_True && has_seen(stream, other, number));
}

PyObject *mark_end(PyObject *stream, Launcher *launcher)
{
    PyObject *lock = Py_XNewRef(held(stream, &Stream__lock)), *pool = Py_XNewRef(held(stream, &Stream__events));
    PyObject *mark = NULL, *event = NULL, *serial = NULL;
    if (lock != NULL && pool != NULL && PyList_CheckExact(pool) && lock_stream(lock)) {
        void *handle, *address;
        int code = FAILED;
        event = held(stream, &Stream_closed) == Py_False ? take_event(stream, pool) : NULL;
        PyObject *number = event ? PyNumber_Long(event) : NULL;
        if (number != NULL && as_pointer(number, &handle) && as_pointer(held(stream, &Stream_address), &address) &&
            (serial = begin_mark(stream)) != NULL) {
            Py_BEGIN_ALLOW_THREADS
            code = launcher->record(handle, address);
            Py_END_ALLOW_THREADS
        }
        Py_XDECREF(number);
        if (code == 0)
            mark = (PyObject *)append_mark(stream, launcher, event, serial);
        else if (event != NULL && PyList_Append(pool, event) != 0)
            PyErr_Clear(); /* one event fewer */
        unlock_stream(lock);
    }
    Py_XDECREF(serial);
    Py_XDECREF(event);
    Py_XDECREF(lock);
    Py_XDECREF(pool);
    return mark;
}

/* The first mark of a stream at or behind a moment, a new reference; NULL, perhaps with an exception: `passed` says whether because
 * the moment has. As `Timeline.mark_at`. */
static PyObject *mark_at(PyObject *stream, Launcher *launcher, long long serial, int *passed)
{
    PyObject *marks = held(stream, &Stream__marks);
    if (marks == NULL)
        return NULL;
    if (serial >= number_of(stream, &Stream_pending))
        return mark_end(stream, launcher);
    Py_INCREF(marks);
    Py_ssize_t count = PySequence_Size(marks);
    PyObject *first = count > 0 ? PySequence_GetItem(marks, 0) : NULL, *mark = NULL;
    long long start = first ? serial_of(first) : 0;
    if (!PyErr_Occurred()) {
        *passed = first == NULL ? serial <= number_of(stream, &Stream_completed) : serial < start;
        if (first != NULL && !*passed)
            mark = PySequence_GetItem(marks, serial - start < count ? (Py_ssize_t)(serial - start) : count - 1);
        if (mark != NULL && serial_of(mark) < serial)
            Py_CLEAR(mark); /* none is there yet: it is being recorded, which Python waits for, or never was */
    }
    Py_XDECREF(first);
    Py_DECREF(marks);
    return mark;
}

int wait_for(Launcher *launcher, PyObject *stream, PyObject *other, PyObject *serial)
{
    PyObject *seen = held(stream, &Stream__seen), *number = NULL, *event = NULL, *address = NULL;
    void *handle, *own;
    int code = FAILED, passed = 0;
    if (is_behind(stream, other, serial))
        return !PyErr_Occurred();
    if (launcher->wait == NULL || launcher->record == NULL || seen == NULL || !PyDict_CheckExact(seen) ||
        held(other, &Stream_device) == NULL || held(other, &Stream_device) != held(stream, &Stream_device))
        return 0;
    PyObject *mark = mark_at(other, launcher, PyLong_AsLongLong(serial), &passed);
    if (mark == NULL)
        return passed && !PyErr_Occurred();
    number = PyLong_FromLongLong(serial_of(mark));
    event = number ? event_of(mark) : NULL;
    address = event ? PyNumber_Long(event) : NULL;
    if (address != NULL && as_pointer(address, &handle) && as_pointer(held(stream, &Stream_address), &own))
        code = launcher->wait(own, handle, 0);
    if (code == 0 && held(stream, &Stream__stable) == Py_True) {
        if (PyDict_GET_SIZE(seen) >= STREAMS_KEPT)
            PyDict_Clear(seen);
        if (PyDict_SetItem(seen, held(other, &Stream_number), number) != 0)
            code = FAILED;
    }
    Py_XDECREF(address);
    Py_XDECREF(event);
    Py_XDECREF(number);
    Py_DECREF(mark);
    return code == 0;
}
