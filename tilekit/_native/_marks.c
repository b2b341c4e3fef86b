/* Events recorded in a stream, with their serials: as `timeline.Mark`, and as the end of `Timeline._mark`. */
#include "_launch.h"
#include <structmember.h>
#include <time.h>

static const double LONGEST_POLL_S = 0.1; /* a thread that polls sees no signals */

static PyTypeObject *mark_type;

/* A method of a class of Python's own, whose function is called at once where the object is of that class. */
typedef struct {
    const char *text;
    int flags; /* that its function is called with */
    PyObject *name;
    PyTypeObject *owner; /* NULL if its flags are others in this Python */
    PyCFunction function;
} Method;

static Method deque_append = {.text = "append", .flags = METH_O}, deque_popleft = {.text = "popleft", .flags = METH_NOARGS};
static Method lock_acquire = {.text = "acquire", .flags = METH_VARARGS | METH_KEYWORDS};
static Method lock_release = {.text = "release", .flags = METH_NOARGS};
static PyObject *not_blocking; /* the arguments of `acquire` */

/* Call it with that argument (of `acquire`: the tuple of them), or with none; 0 with an exception. */
static int call(Method *method, PyObject *object, PyObject *argument)
{
    PyObject *result;
    if (Py_TYPE(object) == method->owner)
        result = method->flags & METH_KEYWORDS
                     ? ((PyCFunctionWithKeywords)(void (*)(void))method->function)(object, argument, NULL)
                     : method->function(object, argument);
    else if (method->flags & METH_KEYWORDS)
        result = PyObject_CallMethodOneArg(object, method->name, PyTuple_GET_ITEM(argument, 0));
    else if (argument != NULL)
        result = PyObject_CallMethodOneArg(object, method->name, argument);
    else
        result = PyObject_CallMethodNoArgs(object, method->name);
    Py_XDECREF(result);
    return result != NULL && result != Py_False;
}

int append(PyObject *deque, PyObject *item)
{
    return call(&deque_append, deque, item);
}

int lock_stream(PyObject *lock)
{
    return call(&lock_acquire, lock, not_blocking);
}

void unlock_stream(PyObject *lock)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (!call(&lock_release, lock, NULL))
        PyErr_WriteUnraisable(lock);
    PyErr_Restore(kind, value, trace);
}

PyObject *take_event(PyObject *stream, PyObject *pool)
{
    Py_ssize_t last = PyList_GET_SIZE(pool) - 1;
    if (last >= 0) {
        PyObject *event = PyList_GET_ITEM(pool, last);
        Py_SET_SIZE(pool, last); /* the list's reference is the caller's now */
        return event;
    }
    PyObject *create = held(stream, &Stream__create);
    return create ? PyObject_CallNoArgs(create) : NULL;
}

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

long long serial_of(PyObject *mark)
{
    if (Py_TYPE(mark) == mark_type)
        return ((Mark *)mark)->serial;
    PyObject *serial = PyObject_GetAttr(mark, names.serial);
    long long number = serial ? PyLong_AsLongLong(serial) : -1;
    Py_XDECREF(serial);
    return number;
}

PyObject *event_of(PyObject *mark)
{
    return Py_TYPE(mark) == mark_type ? Py_NewRef(((Mark *)mark)->event) : PyObject_GetAttr(mark, names.event);
}

static int done(PyObject *none)
{
    Py_XDECREF(none);
    return none != NULL;
}

/* The serial of a mark of the deque, which is not empty; -1 with an exception. */
static long long serial_at(PyObject *marks, Py_ssize_t at)
{
    PyObject *mark = PySequence_GetItem(marks, at);
    long long serial = mark ? serial_of(mark) : -1;
    Py_XDECREF(mark);
    return serial;
}

/* As `Timeline._trim`; 0 with an exception. */
static int trim(PyObject *stream, PyObject *marks, Py_ssize_t count)
{
    PyObject *middle = PySequence_GetItem(marks, count / 2);
    int passed = middle && Py_TYPE(middle) == mark_type ? mark_passed((Mark *)middle, 0) : -1;
    long long serial = passed == 1 ? ((Mark *)middle)->serial : 0;
    Py_XDECREF(middle);
    if (passed < 0 || PyObject_Size(held(stream, &Stream__failures)) != 0) /* what has failed has to be remembered */
        return done(PyObject_CallMethodNoArgs(stream, names.trim));
    if (serial > PyLong_AsLongLong(held(stream, &Stream_completed))) {
        PyObject *completed = PyLong_FromLongLong(serial);
        if (completed == NULL)
            return 0;
        put(stream, &Stream_completed, completed);
    }
    for (; passed && count > 0; count--) {
        long long first = serial_at(marks, 0);
        if (first < 0)
            return 0;
        if (first > serial)
            break;
        if (!call(&deque_popleft, marks, NULL))
            return 0;
    }
    PyObject *trim_at = PyLong_FromSsize_t(2 * count < constants.MARKS_KEPT ? constants.MARKS_KEPT : 2 * count);
    if (trim_at == NULL)
        return 0;
    put(stream, &Stream__trim_at, trim_at);
    return 1;
}

/* Forget the marks that are known to have passed; of too many look whether some have. As at the end of `Timeline._mark`. */
static int tidy(PyObject *stream, PyObject *marks)
{
    long long completed = PyLong_AsLongLong(held(stream, &Stream_completed));
    long long trim_at = PyLong_AsLongLong(held(stream, &Stream__trim_at));
    int none_failed = PyObject_Size(held(stream, &Stream__failures)) == 0;
    for (int first = 1;; first = 0) {
        Py_ssize_t count = PySequence_Size(marks);
        if (count <= 0)
            return count == 0 && !PyErr_Occurred();
        long long serial = serial_at(marks, 0);
        if (serial < 0 || PyErr_Occurred())
            return 0;
        if (serial > completed)
            return first && count > trim_at ? trim(stream, marks, count) : 1;
        if (!none_failed) /* a failure among those that are forgotten has to be remembered */
            return done(PyObject_CallMethodOneArg(stream, names.forget_until, held(stream, &Stream_completed)));
        if (!call(&deque_popleft, marks, NULL))
            return 0;
    }
}

static struct {
    PyObject *device;
    Launcher *launcher;
} recent; /* where a mark was made last */

Launcher *launcher_at(PyObject *stream)
{
    return recent.device != NULL && held(stream, &Stream_device) == recent.device ? recent.launcher : NULL;
}

PyObject *begin_mark(PyObject *stream)
{
    PyObject *serial = get(stream, &Stream_pending);
    PyObject *next = serial ? PyLong_FromLongLong(PyLong_AsLongLong(serial) + 1) : NULL;
    if (next == NULL)
        Py_CLEAR(serial);
    else
        put(stream, &Stream_pending, next);
    return serial;
}

Mark *append_mark(PyObject *stream, Launcher *launcher, PyObject *event, PyObject *serial)
{
    if (recent.device != held(stream, &Stream_device)) {
        Py_XSETREF(recent.device, Py_XNewRef(held(stream, &Stream_device)));
        Py_XSETREF(recent.launcher, (Launcher *)Py_NewRef((PyObject *)launcher));
    }
    PyObject *marks = Py_NewRef(held(stream, &Stream__marks));
    Mark *mark = PyObject_New(Mark, mark_type);
    if (mark == NULL) {
        Py_DECREF(marks);
        return NULL;
    }
    mark->serial = PyLong_AsLongLong(serial);
    mark->event = Py_NewRef(event);
    mark->pool = Py_NewRef(held(stream, &Stream__events));
    mark->launcher = (Launcher *)Py_NewRef((PyObject *)launcher);
    if (!append(marks, (PyObject *)mark) || !tidy(stream, marks))
        Py_CLEAR(mark);
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
    if (code == launcher->not_ready && seconds > 0) {
        struct timespec start, now;
        if (seconds > LONGEST_POLL_S)
            seconds = LONGEST_POLL_S;
        clock_gettime(CLOCK_MONOTONIC, &start);
        do {
            code = launcher->query(handle);
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (code == launcher->not_ready &&
                 (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec) < seconds);
    }
    Py_END_ALLOW_THREADS
    return code == 0 ? 1 : code == launcher->not_ready ? 0 : -1;
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

/* Look a method up; 0 with an exception. */
static int find(const char *module, const char *class, Method *method)
{
    PyObject *in = PyImport_ImportModule(module), *owner = in ? PyObject_GetAttrString(in, class) : NULL;
    PyObject *descriptor = owner ? PyObject_GetAttrString(owner, method->text) : NULL;
    method->name = descriptor ? PyUnicode_InternFromString(method->text) : NULL;
    if (method->name != NULL && Py_TYPE(descriptor) == &PyMethodDescr_Type) {
        PyMethodDef *definition = ((PyMethodDescrObject *)descriptor)->d_method;
        if (definition->ml_flags == method->flags) {
            method->owner = (PyTypeObject *)owner; /* which its module keeps */
            method->function = definition->ml_meth;
        }
    }
    Py_XDECREF(in);
    Py_XDECREF(owner);
    Py_XDECREF(descriptor);
    return method->name != NULL;
}

PyObject *make_mark_type(void)
{
    not_blocking = PyTuple_Pack(1, Py_False);
    if (not_blocking == NULL || !find("collections", "deque", &deque_append) ||
        !find("collections", "deque", &deque_popleft) || !find("_thread", "LockType", &lock_acquire) ||
        !find("_thread", "LockType", &lock_release))
        return NULL;
    static PyType_Slot slots[] = {
        {Py_tp_doc, "An event recorded in a stream, and its serial: see timeline.Mark."},
        {Py_tp_dealloc, mark_dealloc},
        {Py_tp_members, mark_members},
        {Py_tp_methods, mark_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "tilekit._native._launch.Mark",
        .basicsize = sizeof(Mark),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    PyObject *type = PyType_FromSpec(&spec);
    mark_type = (PyTypeObject *)type; /* which the module keeps */
    return type;
}

