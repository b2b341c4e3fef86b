/* Work of another library's operators that is done again for arguments that look alike: as `Repeated.call` of `tilekit.torch._repeated`. */
#include "_launch.h"

enum { MOST_ARGUMENTS = 64 };
enum { PROGRAM, NEW, RESULTS, COPIES, ORDINAL, FIELDS_OF_WORK }; /* of what is known, see `repeat` in _launch.pyi */
enum { SHAPE, STRIDES, DTYPE, RESULT, FIELDS_OF_NEW };

/* Add what tells an argument from others to a list, and its address to those of arrays; 0, perhaps with an exception, if it is unusual. */
static int add_argument(PyObject *key, PyObject *value, uint64_t *addresses, Py_ssize_t *count)
{
    PyObject *part = NULL, *type = (PyObject *)Py_TYPE(value);
    if (value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyUnicode_CheckExact(value))
        return PyList_Append(key, type) == 0 && PyList_Append(key, value) == 0;
    if (PyFloat_CheckExact(value)) /* zero has two signs, which are equal */
        return PyFloat_AS_DOUBLE(value) != 0 && PyList_Append(key, type) == 0 && PyList_Append(key, value) == 0;
    if (PyList_CheckExact(value))
        part = PyList_AsTuple(value);
    else if (*count < MOST_ADDRESSES && (part = likeness(value, &addresses[*count])) != NULL)
        *count += part != Py_None;
    int added = part != NULL && part != Py_None && PyList_Append(key, part) == 0;
    Py_XDECREF(part);
    return added;
}

/* New memory, and where it is; 0 with an exception. */
static int add_new(PyObject *what, PyObject *empty, PyObject *left, PyObject *results, uint64_t *address)
{
    PyObject *asked[] = {PyTuple_GET_ITEM(what, SHAPE), PyTuple_GET_ITEM(what, STRIDES), PyTuple_GET_ITEM(what, DTYPE)};
    PyObject *array = PyObject_Vectorcall(empty, asked, 3, NULL), *like = array ? likeness(array, address) : NULL;
    int known = like != NULL && like != Py_None;
    if (like == Py_None)
        PyErr_SetString(PyExc_TypeError, "new memory has no address");
    Py_XDECREF(like);
    if (known && PyTuple_GET_ITEM(what, RESULT) == Py_None) {
        known = PyList_Append(left, array) == 0;
    } else if (known) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(what, RESULT));
        known = at >= 0 && PyList_SetItem(results, at, Py_NewRef(array)) == 0;
    }
    Py_XDECREF(array);
    return known;
}

/* Do what is known; the results, or the driver's code, a new reference; Py_None, and nothing is done, if another device is current; NULL
 * with an exception. */
static PyObject *do_again(PyObject *work, PyObject *empty, PyObject *stream_on, uint64_t *addresses, Py_ssize_t count)
{
    PyObject *new = PyTuple_GET_ITEM(work, NEW), *left = PyList_New(0), *asked[] = {PyTuple_GET_ITEM(work, ORDINAL)};
    Py_ssize_t several = PyLong_AsSsize_t(PyTuple_GET_ITEM(work, RESULTS));
    PyObject *results = several >= 0 ? PyList_New(several) : NULL, *done = NULL;
    int ready = left != NULL && results != NULL && PyTuple_CheckExact(new) && count + PyTuple_GET_SIZE(new) <= MOST_ADDRESSES;
    for (Py_ssize_t i = 0; ready && i < several; i++)
        PyList_SET_ITEM(results, i, Py_NewRef(Py_None));
    for (Py_ssize_t i = 0; ready && i < PyTuple_GET_SIZE(new); i++) {
        PyObject *what = PyTuple_GET_ITEM(new, i);
        ready = PyTuple_Check(what) && PyTuple_GET_SIZE(what) == FIELDS_OF_NEW && add_new(what, empty, left, results, &addresses[count++]);
    }
    PyObject *address = ready ? PyObject_Vectorcall(stream_on, asked, 1, NULL) : NULL;
    void *stream;
    if (address != NULL && as_pointer(address, &stream)) {
        int code = run_at(PyTuple_GET_ITEM(work, PROGRAM), addresses, count, stream);
        if (code != FAILED)
            done = code == LAUNCHED ? Py_NewRef(results) : code == SLOW ? Py_NewRef(Py_None) : PyLong_FromLong(code);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "what is known is not of the kind that it was built to read");
    }
    Py_XDECREF(address);
    Py_XDECREF(results);
    Py_XDECREF(left);
    return done;
}

/* repeat(known, args, empty, stream_on): see _launch.pyi. */
static PyObject *repeat(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyDict_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected a dict, a tuple, and two functions");
        return NULL;
    }
    uint64_t addresses[MOST_ADDRESSES];
    Py_ssize_t count = 0, several = PyTuple_GET_SIZE(args[1]);
    PyObject *parts = PyList_New(0);
    int usual = parts != NULL && several <= MOST_ARGUMENTS;
    for (Py_ssize_t i = 0; usual && i < several; i++)
        usual = add_argument(parts, PyTuple_GET_ITEM(args[1], i), addresses, &count);
    PyObject *key = usual ? PyList_AsTuple(parts) : NULL, *done = NULL;
    Py_XDECREF(parts);
    PyObject *work = key != NULL ? PyDict_GetItemWithError(args[0], key) : NULL;
    if (work != NULL && PyTuple_Check(work) && PyTuple_GET_SIZE(work) == FIELDS_OF_WORK && is_movable(PyTuple_GET_ITEM(work, PROGRAM)) &&
        PyTuple_GET_ITEM(work, COPIES) == Py_False) {
        Py_INCREF(work);
        done = do_again(work, args[2], args[3], addresses, count);
        Py_DECREF(work);
        if (done != Py_None) {
            Py_DECREF(key);
            return done;
        }
        Py_DECREF(done);
    }
    return key != NULL ? key : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef repeat_functions[] = {
    {"repeat", (PyCFunction)(void (*)(void))repeat, METH_FASTCALL, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};
