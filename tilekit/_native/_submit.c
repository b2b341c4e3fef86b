/* Running launches: alone, in a chain, or in a row.
 *
 * This is what `DeviceOp.sync_on` and its like, `AndThen.steps` and `Zip.steps` do for launches whose arguments are all there and
 * whose plan is known. A function that finds anything else has done nothing, and says so.
 */
#include "_launch.h"

/* The launcher of a plan on that device, a new reference; NULL, and no exception, if there is none. */
static Launcher *launcher_of(PyObject *plan, PyObject *device)
{
    if (device == NULL || device == Py_None)
        return NULL;
    if (held(plan, &Plan_home) != device) {
        PyObject *elsewhere = held(plan, &Plan_elsewhere);
        plan = elsewhere ? PyDict_GetItemWithError(elsewhere, device) : NULL;
        PyErr_Clear();
    }
    return plan ? (Launcher *)Py_XNewRef((PyObject *)launcher_behind(held(plan, &Plan_native))) : NULL;
}

/* A launch, looked at: what it needs, owned. */
typedef struct {
    PyObject *arguments, *label, *plan;
    Launcher *launcher;
} Ready;

static void let_go(Ready *what)
{
    Py_DECREF(what->arguments);
    Py_DECREF(what->label);
    Py_XDECREF(what->plan);
    Py_XDECREF(what->launcher);
}

/* Whether an op is a launch that can be submitted at once on a device (NULL: on that of its plan); then `let_go` of it. */
static int ready(PyObject *op, PyObject *device, Ready *what)
{
    PyObject *form = held(op, &KernelLaunch__form), *options = held(op, &KernelLaunch__options);
    what->arguments = held(op, &KernelLaunch_arguments);
    what->label = held(op, &KernelLaunch__label);
    if (form == NULL || options == NULL || what->arguments == NULL || !PyTuple_CheckExact(what->arguments) ||
        what->label == NULL || !PyUnicode_CheckExact(what->label) || PyUnicode_GET_LENGTH(what->label) == 0 ||
        held(op, &KernelLaunch__fresh) == NULL || held(op, &KernelLaunch__spent) != Py_False || held(form, &Form_lazy) != Py_False)
        return 0;
    Py_INCREF(what->arguments);
    Py_INCREF(what->label);
    what->plan = known_plan(form, what->arguments, options);
    what->launcher = what->plan ? launcher_of(what->plan, device ? device : held(what->plan, &Plan_device)) : NULL;
    if (what->launcher != NULL && what->launcher->count == PyTuple_GET_SIZE(what->arguments))
        return 1;
    let_go(what);
    return 0;
}

/* Take the op's one run, which `ready` has seen it has; or give it back. */
static void claim(PyObject *op, int taken)
{
    put(op, &KernelLaunch__fresh, taken ? NULL : Py_NewRef(Py_None));
    put(op, &KernelLaunch__spent, Py_NewRef(taken ? Py_True : Py_False));
}

/* `submitting` is a threading.local; the attributes that it had in the thread that was here last are kept at hand. */
int is_submitting(void)
{
    static PyObject *attributes;
    static uint64_t whose; /* no number is given to a second thread */
    uint64_t number = PyThreadState_GetID(PyThreadState_Get());
    if (number != whose || attributes == NULL) {
        PyObject *own = PyObject_GetAttr(helpers.submitting, names.dict);
        if (own == NULL || !PyDict_CheckExact(own)) {
            PyErr_Clear();
            Py_XDECREF(own);
            return 1;
        }
        whose = number;
        Py_XSETREF(attributes, own);
    }
    PyObject *submission = PyDict_GetItemWithError(attributes, names.submission);
    PyErr_Clear(); /* of a string's lookup there is none */
    return submission != NULL && submission != Py_None;
}

int submit_marked(Launcher *launcher, PyObject *stream, int (*go)(void *what, PyObject *more, PyObject *stream, Ending *ending),
                  void *what, PyObject *more, Submitted *submitted)
{
    PyObject *lock = held(stream, &Stream__lock), *pool = held(stream, &Stream__events);
    if (launcher->record == NULL || lock == NULL || pool == NULL || !PyList_CheckExact(pool) || is_submitting())
        return 0;
    Py_INCREF(lock);
    if (!lock_stream(lock)) { /* somebody records in it just now: Python waits for that */
        PyErr_Clear();
        Py_DECREF(lock);
        return 0;
    }
    Ending ending = {NULL, NULL, 0};
    PyObject *event = take_event(stream, pool), *address = event ? PyNumber_Long(event) : NULL;
    int code = SLOW, outcome = 0;
    if (address != NULL && as_pointer(address, &ending.event) && (ending.serial = begin_mark(stream)) != NULL)
        code = go(what, more, stream, &ending);
    Py_XDECREF(address);
    if (code == LAUNCHED && ending.code == 0) {
        submitted->serial = Py_NewRef(ending.serial);
        submitted->mark = append_mark(stream, launcher, event, ending.serial);
        outcome = submitted->mark != NULL ? 1 : -1;
    } else if (event != NULL && PyList_Append(pool, event) != 0) {
        outcome = -1;
    } else if (code == LAUNCHED) {
        outcome = 1;
    }
    Py_XDECREF(ending.serial);
    Py_XDECREF(event);
    unlock_stream(lock);
    Py_DECREF(lock);
    if (code == FAILED || outcome < 0 || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)))
        return -1;
    PyErr_Clear();
    return outcome;
}

/* Claim and launch; as `launch`. */
static int launch_claimed(void *which, PyObject *op, PyObject *stream, Ending *ending)
{
    Ready *what = which;
    if (held(op, &KernelLaunch__fresh) == NULL)
        return SLOW;
    claim(op, 1);
    int code = launch(what->launcher, stream, what->arguments, what->label, ending);
    if (code != LAUNCHED && code != FAILED)
        claim(op, 0);
    return code;
}

/* Launch an op, and record the event behind it. 1; 0 if nothing was done; -1 with an exception. */
static int submit_ready(PyObject *op, PyObject *stream, Ready *what, Submitted *submitted)
{
    int outcome = submit_marked(what->launcher, stream, launch_claimed, what, op, submitted);
    if (outcome == 1 && submitted->serial == NULL) {
        submitted->serial = PyObject_CallFunctionObjArgs(helpers.ended, op, stream, NULL);
        outcome = submitted->serial != NULL ? 1 : -1;
    }
    return outcome;
}

int is_over(Submitted *submitted, PyObject *stream, double seconds)
{
    if (submitted->mark == NULL || mark_passed(submitted->mark, seconds) != 1)
        return 0;
    if (PyLong_AsLongLong(held(stream, &Stream_completed)) < submitted->mark->serial)
        put(stream, &Stream_completed, Py_NewRef(submitted->serial));
    return 1;
}

/* `op.sync_on(stream)`; NULL without an exception if nothing was done. */
static PyObject *run_here(PyObject *op, PyObject *stream, Ready *what)
{
    Submitted end = {NULL, NULL};
    PyObject *result = NULL;
    if (submit_ready(op, stream, what, &end) == 1) {
        if (is_over(&end, stream, what->launcher->spin_s))
            result = Py_NewRef(what->arguments);
        else
            result = PyObject_CallFunctionObjArgs(helpers.waited, op, stream, end.serial, NULL);
    }
    Py_XDECREF(end.mark);
    Py_XDECREF(end.serial);
    return result;
}

static int open_stream(PyObject *stream)
{
    return held(stream, &Stream_closed) == Py_False;
}

PyObject *otherwise(PyObject *helper, PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    Py_ssize_t count = nargs + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
    PyObject **all = PyMem_New(PyObject *, 1 + count), *result;
    if (all == NULL)
        return PyErr_NoMemory();
    all[0] = self;
    for (Py_ssize_t i = 0; i < count; i++)
        all[1 + i] = args[i];
    result = PyObject_Vectorcall(helper, all, (size_t)nargs + 1, keywords);
    PyMem_Free(all);
    return result;
}

PyObject *as_stream(PyObject *op, PyObject *what)
{
    PyObject *stream = NULL;
    if (Py_TYPE(what) == Stream_pending.owner) {
        stream = Py_NewRef(what);
    } else {
        PyObject *device = PyObject_GetAttr(op, names.device);
        stream = device ? PyObject_CallFunctionObjArgs(helpers.as_stream, what, device, NULL) : NULL;
        Py_XDECREF(device);
    }
    if (stream != NULL && !open_stream(stream))
        Py_CLEAR(stream);
    if (stream == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear(); /* Python finds it again */
    return stream;
}

static PyObject *runs_sync_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Ready what;
    PyObject *stream = nargs == 1 && names == NULL ? as_stream(self, args[0]) : NULL;
    if (stream != NULL && ready(self, held(stream, &Stream_device), &what)) {
        PyObject *result = run_here(self, stream, &what);
        let_go(&what);
        if (result != NULL || PyErr_Occurred()) {
            Py_DECREF(stream);
            return result;
        }
    }
    Py_XDECREF(stream);
    if (PyErr_Occurred())
        return NULL;
    return otherwise(helpers.sync_on, self, args, nargs, names);
}

PyObject *next_stream(PyObject *device)
{
    PyObject *policy = PyObject_GetAttr(device, names.policy);
    PyObject *stream = policy ? PyObject_CallMethodNoArgs(policy, names.next_stream) : NULL;
    Py_XDECREF(policy);
    return stream;
}

static PyObject *runs_sync(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Ready what;
    if (nargs == 0 && names == NULL && ready(self, NULL, &what)) {
        PyObject *stream = next_stream(held(what.plan, &Plan_device)), *result = NULL;
        if (stream != NULL && open_stream(stream) && held(stream, &Stream_device) == held(what.plan, &Plan_device))
            result = run_here(self, stream, &what);
        if (stream != NULL && result == NULL && !PyErr_Occurred()) /* it is the stream's turn now: no other is asked for */
            result = PyObject_CallFunctionObjArgs(helpers.sync_on, self, stream, NULL);
        Py_XDECREF(stream);
        let_go(&what);
        return result;
    }
    return otherwise(helpers.sync, self, args, nargs, names);
}

PyObject *new_future(PyObject *op, PyObject *stream, PyObject *serial)
{
    PyObject *future = instance(&DeviceFuture_op);
    if (future != NULL) {
        put(future, &DeviceFuture_op, Py_NewRef(op));
        put(future, &DeviceFuture_stream, Py_NewRef(stream));
        put(future, &DeviceFuture__serial, Py_NewRef(serial));
    }
    return future;
}

static PyObject *runs_async_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Ready what;
    PyObject *stream = nargs == 1 && names == NULL && DeviceFuture_op.owner != NULL ? as_stream(self, args[0]) : NULL;
    if (stream != NULL && ready(self, held(stream, &Stream_device), &what)) {
        Submitted end = {NULL, NULL};
        PyObject *future = NULL;
        int submitted = submit_ready(self, stream, &what, &end);
        if (submitted == 1)
            future = new_future(self, stream, end.serial);
        Py_XDECREF(end.mark);
        Py_XDECREF(end.serial);
        let_go(&what);
        if (submitted != 0) {
            Py_DECREF(stream);
            return future;
        }
    }
    Py_XDECREF(stream);
    if (PyErr_Occurred())
        return NULL;
    return otherwise(helpers.async_on, self, args, nargs, names);
}

static PyObject *runs_tile(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    if (nargs == 1 && names == NULL && tile(self, args[0]))
        return Py_NewRef(self);
    return otherwise(helpers.tile, self, args, nargs, names);
}

/* Claim and launch, in the middle of a submission; LAUNCHED, or as `launch` says. */
static int launch_part(PyObject *op, PyObject *stream, Ready *what)
{
    claim(op, 1);
    int code = launch(what->launcher, stream, what->arguments, what->label, NULL);
    if (code != LAUNCHED && code != FAILED)
        claim(op, 0);
    return code;
}

/* Whether work in a context is submitted to its stream, and not written down. */
static int submits(PyObject *ctx)
{
    PyTypeObject *type = ExecutionContext_stream.owner;
    if (Py_TYPE(ctx) == type)
        return 1;
    PyObject *recording = PyObject_TypeCheck(ctx, type) ? PyObject_GetAttr(ctx, names.recording) : NULL;
    PyErr_Clear();
    Py_XDECREF(recording);
    return recording == Py_None;
}

static PyObject *runs_start(PyObject *self, PyObject *ctx)
{
    PyObject *stream = submits(ctx) ? *field(ctx, &ExecutionContext_stream) : NULL, *done = NULL;
    PyTypeObject *type = Done_value.owner;
    Ready what;
    if (stream != NULL && type != NULL && ready(self, *field(ctx, &ExecutionContext_device), &what)) {
        int code = launch_part(self, stream, &what);
        if (code == LAUNCHED && (done = type->tp_alloc(type, 0)) != NULL)
            put(done, &Done_value, Py_NewRef(what.arguments));
        let_go(&what);
        if (code == LAUNCHED || code == FAILED)
            return done;
    }
    return PyObject_CallFunctionObjArgs(helpers.start, self, ctx, NULL);
}

/* `DeviceOp.__del__`, which has nothing to say of an op that has run. */
static void runs_finalize(PyObject *self)
{
    if (held(self, &KernelLaunch__spent) == Py_True || held(self, &KernelLaunch__consumed) == Py_True ||
        helpers.dropped == NULL)
        return;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (kind == NULL) { /* else an exception is on its way, which is why nobody has run the op */
        PyObject *none = PyObject_CallOneArg(helpers.dropped, self);
        if (none == NULL)
            PyErr_WriteUnraisable(helpers.dropped);
        Py_XDECREF(none);
    }
    PyErr_Restore(kind, value, trace);
}

static PyMethodDef runs_methods[] = {
    {"start", runs_start, METH_O, "start($self, ctx)\n--\n\nSee DeviceOp."},
    {"sync", (PyCFunction)(void (*)(void))runs_sync, METH_FASTCALL | METH_KEYWORDS, "sync($self)\n--\n\nSee DeviceOp."},
    {"sync_on", (PyCFunction)(void (*)(void))runs_sync_on, METH_FASTCALL | METH_KEYWORDS,
     "sync_on($self, stream)\n--\n\nSee DeviceOp."},
    {"async_on", (PyCFunction)(void (*)(void))runs_async_on, METH_FASTCALL | METH_KEYWORDS,
     "async_on($self, stream)\n--\n\nSee DeviceOp."},
    {"tile", (PyCFunction)(void (*)(void))runs_tile, METH_FASTCALL | METH_KEYWORDS,
     "tile($self, shape=None, /, **shapes)\n--\n\nSee tilekit.launch.KernelLaunch."},
    {NULL, NULL, 0, NULL},
};

/* submit(op, seconds): see _launch.pyi. */
static PyObject *submit_op(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    double seconds = nargs == 2 ? PyFloat_AsDouble(args[1]) : -1;
    if (seconds < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "expected an op, and for how many seconds to poll");
        return NULL;
    }
    Ready what;
    Submitted end = {NULL, NULL};
    PyObject *stream = NULL, *left = NULL;
    int submitted = 0, over = 0;
    if (ready(args[0], NULL, &what)) {
        stream = next_stream(held(what.plan, &Plan_device));
        if (stream == NULL)
            submitted = PyErr_Occurred() ? -1 : 0;
        else if (open_stream(stream) && held(stream, &Stream_device) == held(what.plan, &Plan_device))
            submitted = submit_ready(args[0], stream, &what, &end);
        let_go(&what);
    }
    over = submitted == 1 && seconds > 0 && is_over(&end, stream, seconds);
    if (submitted >= 0)
        left = over ? Py_NewRef(Py_None)
                    : PyTuple_Pack(2, stream ? stream : Py_None, end.serial ? end.serial : Py_None);
    Py_XDECREF(end.mark);
    Py_XDECREF(end.serial);
    Py_XDECREF(stream);
    return left;
}

/* links(ops, at, result, ctx): of a chain of `apply(kernel)`, first to last, launch those from `at` on, each with the result of
 * the one before, as far as all is as usual; where Python has to go on. The result of a launch is the tuple of its arguments. */
static PyObject *launch_links(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of ops, a place in it, a result, and a context");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    PyObject *result = args[2], *stream = held(args[3], &ExecutionContext_stream);
    PyObject *device = held(args[3], &ExecutionContext_device);
    while (at >= 0 && stream != NULL && PyTuple_CheckExact(result) && at < PyList_GET_SIZE(args[0])) {
        PyObject *link = PyList_GET_ITEM(args[0], at), *kernel = held(link, &AndThen_function);
        PyObject *form = kernel && held(link, &AndThen_unpack) == Py_True ? known_form(kernel, result) : NULL;
        PyObject *label = form ? held(kernel, &Kernel_label) : NULL, *options = form ? held(kernel, &Kernel__options) : NULL;
        PyObject *plan = label && options ? known_plan(form, result, options) : NULL;
        Launcher *launcher = plan ? launcher_of(plan, device) : NULL;
        int code = SLOW;
        if (launcher != NULL && launcher->count == PyTuple_GET_SIZE(result)) {
            Py_INCREF(label);
            code = launch(launcher, stream, result, label, NULL);
            Py_DECREF(label);
        }
        Py_XDECREF(launcher);
        Py_XDECREF(plan);
        if (code == FAILED || (code == LAUNCHED && PyErr_CheckSignals() != 0))
            return NULL;
        if (code != LAUNCHED)
            break;
        at++;
    }
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
}

/* row(ops, at, results, ctx): launch the ops of a tuple from `at` on, as far as all is as usual, and append their results; where
 * Python has to go on. */
static PyObject *launch_row(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyTuple_CheckExact(args[0]) || !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of ops, a place in it, a list for the results, and a context");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    PyObject *stream = held(args[3], &ExecutionContext_stream), *device = held(args[3], &ExecutionContext_device);
    for (; at >= 0 && stream != NULL && at < PyTuple_GET_SIZE(args[0]); at++) {
        PyObject *op = PyTuple_GET_ITEM(args[0], at);
        Ready what;
        if (!ready(op, device, &what))
            break;
        int code = launch_part(op, stream, &what);
        int failed = code == FAILED || (code == LAUNCHED && (PyList_Append(args[2], what.arguments) || PyErr_CheckSignals()));
        let_go(&what);
        if (failed)
            return NULL;
        if (code != LAUNCHED)
            break;
    }
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
}

PyMethodDef submit_functions[] = {
    {"submit", (PyCFunction)(void (*)(void))submit_op, METH_FASTCALL, "See _launch.pyi."},
    {"links", (PyCFunction)(void (*)(void))launch_links, METH_FASTCALL, "See _launch.pyi."},
    {"row", (PyCFunction)(void (*)(void))launch_row, METH_FASTCALL, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};

PyObject *make_runs_type(void)
{
    static PyType_Slot slots[] = {{Py_tp_doc, "How a launch runs alone."}, {Py_tp_methods, runs_methods},
                                  {Py_tp_finalize, runs_finalize}, {0, NULL}};
    static PyType_Spec spec = {
        .name = "tilekit._native._launch.Runs", .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .slots = slots,
    };
    return PyType_FromSpec(&spec);
}
