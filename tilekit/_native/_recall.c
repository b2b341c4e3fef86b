/* Calls that look alike: what a function is given, but for the addresses of tensors. As `_key` of `tilekit.kernels._recall`. */
#include "_launch.h"

enum { MOST_VALUES = 32 };

/* Append what is known of an argument to the parts of a key, borrowed, and a tensor to a list; 0, perhaps with an exception, if
 * it is of an unusual kind. */
static int add_value(PyObject *value, PyObject *plain, PyObject *tensors, PyObject **parts, Py_ssize_t *count)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == Tensor_traits.owner) {
        PyObject *traits = held(value, &Tensor_traits), *storage = held(value, &Tensor_storage);
        if (traits == NULL || storage == NULL || storage == Py_None)
            return 0;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) /* how far are the two apart? */
            if (held(PyList_GET_ITEM(tensors, i), &Tensor_storage) == storage)
                return 0;
        parts[(*count)++] = traits;
        return PyList_Append(tensors, value) == 0;
    }
    if (value != Py_None) {
        /* Zero has two signs, which are equal. */
        if ((type == &PyFloat_Type && PyFloat_AS_DOUBLE(value) == 0) || PySet_Contains(plain, (PyObject *)type) != 1)
            return 0;
        parts[(*count)++] = (PyObject *)type;
    }
    parts[(*count)++] = value;
    return 1;
}

/* key(function, args, kwargs, plain, tensors): see _launch.pyi. */
static PyObject *key_of(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyTuple_CheckExact(args[1]) || !PyDict_CheckExact(args[2]) || !PyFrozenSet_CheckExact(args[3]) ||
        !PyList_CheckExact(args[4])) {
        PyErr_SetString(PyExc_TypeError, "expected a function, a tuple, a dict, a frozenset, and a list");
        return NULL;
    }
    PyObject *parts[3 * MOST_VALUES], *name, *value, *key = NULL;
    Py_ssize_t positional = PyTuple_GET_SIZE(args[1]), named = PyDict_GET_SIZE(args[2]), count = 0, at = 0;
    int usual = positional + named <= MOST_VALUES;
    while (usual && PyDict_Next(args[2], &at, &name, &value))
        parts[count++] = name;
    for (at = 0; usual && at < positional; at++)
        usual = add_value(PyTuple_GET_ITEM(args[1], at), args[3], args[4], parts, &count);
    at = 0;
    while (usual && PyDict_Next(args[2], &at, &name, &value))
        usual = add_value(value, args[3], args[4], parts, &count);
    PyObject *size = usual ? PyLong_FromSsize_t(positional) : NULL;
    if (size != NULL && (key = PyTuple_New(2 + count)) != NULL) {
        PyTuple_SET_ITEM(key, 0, Py_NewRef(args[0]));
        PyTuple_SET_ITEM(key, 1, Py_NewRef(size));
        for (at = 0; at < count; at++)
            PyTuple_SET_ITEM(key, 2 + at, Py_NewRef(parts[at]));
    }
    Py_XDECREF(size);
    if (PyErr_Occurred())
        return NULL;
    return key != NULL ? key : Py_NewRef(Py_None);
}

PyMethodDef recall_functions[] = {
    {"key", (PyCFunction)(void (*)(void))key_of, METH_FASTCALL, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};
