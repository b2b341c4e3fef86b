/* Recorded places in a stream: as `timeline.Mark`, and as the end of `Timeline._mark`. */
#include "_launch.h"
#include <structmember.h>
#include <time.h>

enum { NOT_READY = 600 };

static struct {
    PyObject *append, *popleft, *forget, *trim, *serial;
} name;
static PyTypeObject *mark_type;

static void mark_dealloc(Mark *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (PyList_Append(self->pool, self->event) != 0)
        PyErr_WriteUnraisable(self->pool);
    PyErr_Restore(kind, value, trace);
    Py_DECREF(self->event);
    Py_DECREF(self->pool);
    Py_DECREF(self->launcher);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMemberDef mark_members[] = {
    {"serial", T_LONGLONG, offsetof(Mark, serial), READONLY, "The stream's."},
    {"event", T_OBJECT, offsetof(Mark, event), READONLY, "The driver's."},
    {NULL, 0, 0, 0, NULL},
};

/* The serial of a mark of either kind; -1 with an exception. */
static long long serial_of(PyObject *mark)
{
    if (Py_TYPE(mark) == mark_type)
        return ((Mark *)mark)->serial;
    PyObject *serial = PyObject_GetAttr(mark, name.serial);
    long long found = serial ? PyLong_AsLongLong(serial) : -1;
    Py_XDECREF(serial);
    return found;
}

/* Call a method for what it does; 0 with an exception. */
static int call(PyObject *object, PyObject *method, PyObject *argument)
{
    PyObject *args[] = {object, argument};
    PyObject *none = PyObject_VectorcallMethod(method, args, argument ? 2 : 1, NULL);
    Py_XDECREF(none);
    return none != NULL;
}

/* Forget the marks that are known to have passed; of too many look whether some have. As at the end of `Timeline._mark`. */
static int tidy(PyObject *stream, PyObject *marks)
{
    long long completed = PyLong_AsLongLong(held(stream, &Stream_completed));
    long long most = PyLong_AsLongLong(held(stream, &Stream__trim_at));
    int told = PyObject_Size(held(stream, &Stream__failures)) == 0;
    for (int first = 1;; first = 0) {
        Py_ssize_t count = PySequence_Size(marks);
        if (count <= 0)
            return count == 0 && !PyErr_Occurred();
        PyObject *mark = PySequence_GetItem(marks, 0);
        long long serial = mark ? serial_of(mark) : -1;
        Py_XDECREF(mark);
        if (serial < 0 || PyErr_Occurred())
            return 0;
        if (serial > completed)
            return first && count > most ? call(stream, name.trim, NULL) : 1;
        if (!told) /* a failure among those that are forgotten has to be remembered */
            return call(stream, name.forget, held(stream, &Stream_completed));
        if (!call(marks, name.popleft, NULL))
            return 0;
    }
}

Mark *made_mark(PyObject *stream, Launcher *launcher, PyObject *event)
{
    PyObject *marks = Py_NewRef(held(stream, &Stream__marks));
    long long serial = PyLong_AsLongLong(held(stream, &Stream_pending));
    PyObject *next = PyLong_FromLongLong(serial + 1);
    Mark *mark = next ? PyObject_New(Mark, mark_type) : NULL;
    if (mark == NULL) {
        Py_XDECREF(next);
        Py_DECREF(marks);
        return NULL;
    }
    mark->serial = serial;
    mark->event = Py_NewRef(event);
    mark->pool = Py_NewRef(held(stream, &Stream__events));
    mark->launcher = (Launcher *)Py_NewRef((PyObject *)launcher);
    if (call(marks, name.append, (PyObject *)mark)) {
        put(stream, &Stream_pending, next);
        if (!tidy(stream, marks))
            Py_CLEAR(mark);
    } else {
        Py_DECREF(next);
        Py_CLEAR(mark);
    }
    Py_DECREF(marks);
    return mark;
}

int mark_passed(Mark *self, double seconds)
{
    Launcher *launcher = self->launcher;
    void *handle = NULL, *context = NULL;
    PyObject *address = PyNumber_Long(self->event);
    int known = address != NULL && as_pointer(address, &handle);
    Py_XDECREF(address);
    if (!known || launcher->query == NULL || launcher->current(&context) != 0 || context != launcher->context) {
        PyErr_Clear();
        return -1;
    }
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = launcher->query(handle);
    if (code == NOT_READY && seconds > 0) {
        struct timespec start, now;
        clock_gettime(CLOCK_MONOTONIC, &start);
        do {
            code = launcher->query(handle);
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (code == NOT_READY &&
                 (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec) < seconds);
    }
    Py_END_ALLOW_THREADS
    return code == 0 ? 1 : code == NOT_READY ? 0 : -1;
}

static PyObject *mark_poll(Mark *self, PyObject *argument)
{
    double seconds = PyFloat_AsDouble(argument);
    if (seconds == -1.0 && PyErr_Occurred())
        return NULL;
    int passed = mark_passed(self, seconds);
    return passed < 0 ? Py_NewRef(Py_None) : PyBool_FromLong(passed);
}

static PyMethodDef mark_methods[] = {
    {"poll", (PyCFunction)mark_poll, METH_O, "See timeline.Mark."},
    {NULL, NULL, 0, NULL},
};

PyObject *make_mark_type(void)
{
    static const Text texts[] = {
        {&name.append, "append"}, {&name.popleft, "popleft"}, {&name.forget, "_forget_until"}, {&name.trim, "_trim"},
        {&name.serial, "serial"}, {NULL, NULL},
    };
    if (!intern(texts))
        return NULL;
    static PyType_Slot slots[] = {
        {Py_tp_doc, "A recorded place in a stream: see timeline.Mark."},
        {Py_tp_dealloc, mark_dealloc},
        {Py_tp_members, mark_members},
        {Py_tp_methods, mark_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "tilekit.compiler._launch.Mark",
        .basicsize = sizeof(Mark),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    PyObject *type = PyType_FromSpec(&spec);
    mark_type = (PyTypeObject *)type; /* which the module keeps */
    return type;
}

