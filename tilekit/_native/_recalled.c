/* Ops of ready-made kernels that are recalled: how they are found, and run. As `Recall.op` and `Recalled` of `tilekit.kernels._recall`, for
 * ops all of whose launches are known. */
#include "_launch.h"

#define DEFINE_SLOT(type, slot) Slot type##_##slot = {#type, #slot, NULL, NULL, 0};
RECALLED_SLOTS(DEFINE_SLOT)
#define SLOT_ADDRESS(type, slot) &type##_##slot,
static Slot *const slots[] = {RECALLED_SLOTS(SLOT_ADDRESS) NULL};
#define FIELD_TEXT(number, name) #name,
static const char *const fields[] = {RECIPE(FIELD_TEXT) NULL};

static PyTypeObject *recipe_type;
static PyObject *in_python; /* (sync, sync_on, async_on): what is left to Python of these */

/* recalls(op, recipe, in_python): see _launch.pyi. */
static PyObject *recalls(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *op, *recipe, *methods;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyType_Type, &op, &PyType_Type, &recipe, &PyTuple_Type, &methods))
        return NULL;
    PyObject *known = PyObject_GetAttr(recipe, names.fields);
    int same = known != NULL && PyTuple_Check(known) && PyTuple_GET_SIZE(known) == RECIPE_FIELDS && PyTuple_GET_SIZE(methods) == 3;
    for (Py_ssize_t i = 0; same && i < RECIPE_FIELDS; i++)
        same = PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(known, i), fields[i]) == 0;
    if (known != NULL && !same)
        PyErr_Format(PyExc_ImportError, "it was built to read other recipes than those with %S", known);
    Py_XDECREF(known);
    for (Slot *const *slot = slots; same && *slot != NULL; slot++)
        same = find_slot(op, *slot);
    if (!same)
        return NULL;
    Py_XSETREF(recipe_type, (PyTypeObject *)Py_NewRef(recipe));
    Py_XSETREF(in_python, Py_NewRef(methods));
    Py_RETURN_NONE;
}

/* recalled(known, function, name, args, kwargs, plain): see _launch.pyi. */
static PyObject *recalled(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 6 || !PyDict_CheckExact(args[0]) || Recalled__recipe.owner == NULL) {
        PyErr_SetString(PyExc_TypeError, "expected a dict, a function, its name, a tuple, a dict, and a frozenset");
        return NULL;
    }
    PyObject *tensors = PyList_New(0), *key = tensors ? key_of(args[1], args[3], args[4], args[5], tensors) : NULL;
    PyObject *recipe = key && key != Py_None ? PyDict_GetItemWithError(args[0], key) : NULL, *op = NULL;
    Py_XDECREF(key);
    if (recipe != NULL && Py_TYPE(recipe) == recipe_type && PyList_GET_SIZE(tensors) > 0) {
        Py_INCREF(recipe);
        PyObject *site = current_site(), *call = site ? PyTuple_Pack(3, args[1], args[3], args[4]) : NULL;
        op = call ? instance(&Recalled__recipe) : NULL;
        if (op != NULL) {
            put(op, &Recalled__begun, Py_NewRef(Py_None));
            put(op, &Recalled__inputs, Py_NewRef(call));
            put(op, &Recalled__consumed, Py_NewRef(Py_False));
            put(op, &Recalled__fresh, Py_NewRef(Py_None));
            put(op, &Recalled__label, Py_NewRef(args[2]));
            put(op, &Recalled__recipe, Py_NewRef(recipe));
            put(op, &Recalled__site, Py_NewRef(site));
            put(op, &Recalled__spent, Py_NewRef(Py_False));
            put(op, &Recalled__tensors, Py_NewRef(tensors));
            put(op, &Recalled_spec, Py_NewRef(PyTuple_GET_ITEM(recipe, RECIPE_SPEC)));
        }
        Py_XDECREF(call);
        Py_XDECREF(site);
        Py_DECREF(recipe);
    }
    Py_XDECREF(tensors);
    return op != NULL ? op : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* The device of an op, borrowed; NULL, and no exception, if that is not told here. */
static PyObject *device_of(PyObject *op)
{
    PyObject *tensors = held(op, &Recalled__tensors);
    PyObject *tensor = tensors && PyList_CheckExact(tensors) && PyList_GET_SIZE(tensors) ? PyList_GET_ITEM(tensors, 0) : NULL;
    PyObject *storage = tensor ? held(tensor, &Tensor_storage) : NULL;
    return storage && PyObject_TypeCheck(storage, Storage_device.owner) ? *field(storage, &Storage_device) : NULL;
}

/* Take the op's one run, or give it back. */
static void claim(PyObject *op, int taken)
{
    put(op, &Recalled__fresh, taken ? NULL : Py_NewRef(Py_None));
    put(op, &Recalled__spent, Py_NewRef(taken ? Py_True : Py_False));
}

/* What is left of an exception is the op's: note that, and give -1. */
static int failed(PyObject *op)
{
    PyObject *type, *error, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    PyObject *none = PyObject_CallMethodOneArg(op, names.annotate, error);
    if (none == NULL)
        PyErr_Clear();
    Py_XDECREF(none);
    PyErr_Restore(type, error, trace);
    return -1;
}

/* Make the launches of an op whose run was taken. 1, with the serial behind the last, 0 if that has passed; 0 if Python is to go on; -1
 * with an exception. */
static int launch_all(PyObject *op, PyObject *recipe, PyObject *stream, PyObject *seconds, PyObject **serial)
{
    PyObject *new = PyTuple_GET_ITEM(recipe, RECIPE_NEW), *tensors = held(op, &Recalled__tensors);
    PyObject *bases = PyTuple_GET_SIZE(new) ? new_bases(tensors, new, stream) : Py_NewRef(tensors);
    Py_ssize_t count, done = bases ? submit_launches(PyTuple_GET_ITEM(recipe, RECIPE_NATIVE), bases, stream, seconds, serial, &count) : 0;
    int code = 0;
    if (done < 0) {
        code = failed(op);
    } else if (bases != NULL && done == count) {
        PyObject *result = PyObject_CallOneArg(PyTuple_GET_ITEM(recipe, RECIPE_OUTCOME), bases);
        if (result != NULL)
            put(op, &Recalled_arguments, result);
        if (result != NULL && *serial == NULL)
            *serial = PyObject_CallFunctionObjArgs(helpers.ended, op, stream, NULL);
        code = result != NULL && *serial != NULL ? 1 : -1;
    } else if (done > 0) {
        PyObject *number = PyLong_FromSsize_t(done);
        PyObject *none = number ? PyObject_CallMethodObjArgs(op, names.go_on, number, bases, stream, NULL) : NULL;
        code = none != NULL ? 0 : -1;
        Py_XDECREF(number);
        Py_XDECREF(none);
    } else {
        claim(op, 0);
    }
    Py_XDECREF(bases);
    return code;
}

/* Submit an op in a stream; as `launch_all`. */
static int submit(PyObject *op, PyObject *stream, PyObject *seconds, PyObject **serial)
{
    PyObject *recipe = held(op, &Recalled__recipe), *device = device_of(op);
    *serial = NULL;
    if (recipe == NULL || Py_TYPE(recipe) != recipe_type || device == NULL || device != held(stream, &Stream_device) ||
        held(op, &Recalled__begun) != Py_None || PyTuple_GET_SIZE(PyTuple_GET_ITEM(recipe, RECIPE_BOUND)) != 0 ||
        !are_launches(PyTuple_GET_ITEM(recipe, RECIPE_NATIVE)) || held(op, &Recalled__fresh) == NULL ||
        held(op, &Recalled__spent) != Py_False || is_submitting())
        return 0;
    Py_INCREF(recipe);
    claim(op, 1);
    int code = launch_all(op, recipe, stream, seconds, serial);
    Py_DECREF(recipe);
    return code;
}

/* Submit, and wait; NULL without an exception if Python is to go on. */
static PyObject *run_here(PyObject *op, PyObject *stream)
{
    PyObject *serial, *result = NULL;
    if (submit(op, stream, Py_None, &serial) == 1) {
        uint64_t moment;
        if (small_int(serial, &moment) && moment == 0)
            result = Py_XNewRef(held(op, &Recalled_arguments));
        else
            result = PyObject_CallFunctionObjArgs(helpers.waited, op, stream, serial, NULL);
    }
    Py_XDECREF(serial);
    return result;
}

static PyObject *recalls_sync_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    PyObject *stream = nargs == 1 && keywords == NULL ? as_stream(self, args[0]) : NULL;
    PyObject *result = stream ? run_here(self, stream) : NULL;
    Py_XDECREF(stream);
    return result != NULL || PyErr_Occurred() ? result : otherwise(PyTuple_GET_ITEM(in_python, 1), self, args, nargs, keywords);
}

static PyObject *recalls_sync(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    PyObject *device = nargs == 0 && keywords == NULL ? device_of(self) : NULL, *result = NULL;
    if (device == NULL)
        return otherwise(PyTuple_GET_ITEM(in_python, 0), self, args, nargs, keywords);
    PyObject *stream = next_stream(device);
    if (stream != NULL && Py_TYPE(stream) == Stream_pending.owner && held(stream, &Stream_closed) == Py_False)
        result = run_here(self, stream);
    if (stream != NULL && result == NULL && !PyErr_Occurred()) /* it is the stream's turn now: no other is asked for */
        result = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(in_python, 1), self, stream, NULL);
    Py_XDECREF(stream);
    return result;
}

static PyObject *recalls_async_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    PyObject *stream = nargs == 1 && keywords == NULL && PyDict_GET_SIZE(helpers.borrowed) == 0 ? as_stream(self, args[0]) : NULL;
    PyObject *seconds = stream ? PyFloat_FromDouble(0) : NULL, *serial = NULL, *future = NULL;
    if (seconds != NULL && submit(self, stream, seconds, &serial) == 1)
        future = new_future(self, stream, serial);
    Py_XDECREF(serial);
    Py_XDECREF(seconds);
    Py_XDECREF(stream);
    return future != NULL || PyErr_Occurred() ? future : otherwise(PyTuple_GET_ITEM(in_python, 2), self, args, nargs, keywords);
}

PyObject *make_recalls_type(void)
{
    static PyMethodDef methods[] = {
        {"sync", (PyCFunction)(void (*)(void))recalls_sync, METH_FASTCALL | METH_KEYWORDS, "sync($self)\n--\n\nSee DeviceOp."},
        {"sync_on", (PyCFunction)(void (*)(void))recalls_sync_on, METH_FASTCALL | METH_KEYWORDS,
         "sync_on($self, stream)\n--\n\nSee DeviceOp."},
        {"async_on", (PyCFunction)(void (*)(void))recalls_async_on, METH_FASTCALL | METH_KEYWORDS,
         "async_on($self, stream)\n--\n\nSee DeviceOp."},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot type_slots[] = {
        {Py_tp_doc, "How the op of a ready-made kernel that is recalled is run."}, {Py_tp_methods, methods}, {0, NULL}};
    static PyType_Spec spec = {
        .name = "tilekit._native._launch.Recalls", .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .slots = type_slots,
    };
    return PyType_FromSpec(&spec);
}

PyMethodDef recalled_functions[] = {
    {"recalled", (PyCFunction)(void (*)(void))recalled, METH_FASTCALL, "See _launch.pyi."},
    {"recalls", recalls, METH_VARARGS, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};
