/* Calling a kernel: the op that describes the launch, and the plan of that. As `Kernel.__call__` and `Form.plan`. */
#include "_launch.h"

enum { MOST_ARGUMENTS = 64 };

/* As `known_plan`; `last` is what was looked up last, if anything. */
static PyObject *look_up(PyObject *form, PyObject *last, PyObject *arguments, PyObject *options)
{
    PyObject *all_keyed = held(form, &Form_keyed), *plans = held(form, &Form_plans);
    Py_ssize_t count = PyTuple_GET_SIZE(arguments), size = 0;
    if (all_keyed == NULL || plans == NULL || PyBytes_GET_SIZE(all_keyed) != count || count > MOST_ARGUMENTS)
        return NULL;
    const char *keyed = PyBytes_AS_STRING(all_keyed);
    PyObject *parts[MOST_ARGUMENTS], *owned[MOST_ARGUMENTS], *plan = NULL; /* parts are borrowed; `owned` are those that nobody has */
    int owned_count = 0;
    int same = last != NULL && PyTuple_CheckExact(last) && PyTuple_GET_ITEM(last, 1) == options;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *argument = PyTuple_GET_ITEM(arguments, i), *part = argument;
        if (keyed[i] == constants.KEYED_NOT)
            continue;
        if (keyed[i] == constants.KEYED_COMPUTED)
            goto out;
        if (keyed[i] == constants.KEYED_SIGNED) {
            if (!PyFloat_CheckExact(argument))
                goto out;
            double number = PyFloat_AS_DOUBLE(argument);
            part = number >= 0x1p-100 && number <= 0x1p100 ? Py_True : Py_False; /* as `facts.is_positive` */
        }
        if (keyed[i] == constants.KEYED_TRAITS) {
            part = held(argument, Py_TYPE(argument) == Tensor_traits.owner ? &Tensor_traits : &Partition_traits);
            if (part == NULL) {
                part = PyObject_GetAttr(argument, names.traits);
                if (part == NULL) {
                    PyErr_Clear();
                    goto out;
                }
                owned[owned_count++] = part;
            }
        }
        same = same && PyTuple_GET_ITEM(last, 2 + size) == part;
        parts[size++] = part;
    }
    if (same) {
        plan = Py_NewRef(PyTuple_GET_ITEM(last, 0));
        goto out;
    }
    PyObject *key = PyTuple_New(1 + size), *kept = key ? PyTuple_New(2 + size) : NULL;
    if (kept != NULL) {
        PyTuple_SET_ITEM(key, 0, Py_NewRef(options));
        PyTuple_SET_ITEM(kept, 1, Py_NewRef(options));
        for (Py_ssize_t i = 0; i < size; i++) {
            PyTuple_SET_ITEM(key, 1 + i, Py_NewRef(parts[i]));
            PyTuple_SET_ITEM(kept, 2 + i, Py_NewRef(parts[i]));
        }
        plan = PyDict_GetItemWithError(plans, key);
        if (plan != NULL) {
            Py_INCREF(plan);
            PyTuple_SET_ITEM(kept, 0, Py_NewRef(plan));
            put(form, &Form_last, Py_NewRef(kept));
        }
    }
    Py_XDECREF(key);
    Py_XDECREF(kept);
    PyErr_Clear();
out:
    while (owned_count > 0)
        Py_DECREF(owned[--owned_count]);
    return plan;
}

PyObject *known_plan(PyObject *form, PyObject *arguments, PyObject *options)
{
    /* Traits that are not there yet Python works out: meanwhile other threads may replace what is known. */
    PyObject *last = Py_XNewRef(held(form, &Form_last));
    Py_INCREF(form);
    Py_INCREF(options);
    PyObject *plan = look_up(form, last, arguments, options);
    Py_XDECREF(last);
    Py_DECREF(form);
    Py_DECREF(options);
    return plan;
}

/* Whether each name that the kernel takes from outside, in a list of (globals or class, name, value), has the value that it had. */
static int names_stand(PyObject *origins)
{
    if (origins == NULL || !PyList_CheckExact(origins))
        return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(origins); i++) {
        PyObject *origin = PyList_GET_ITEM(origins, i);
        if (!PyTuple_CheckExact(origin) || PyTuple_GET_SIZE(origin) != 3)
            return 0;
        PyObject *owner = PyTuple_GET_ITEM(origin, 0), *inside = PyType_Check(owner) ? ((PyTypeObject *)owner)->tp_dict : owner;
        if (inside == NULL || !PyDict_Check(inside))
            return 0;
        PyObject *value = PyDict_GetItemWithError(inside, PyTuple_GET_ITEM(origin, 1));
        if (value == NULL)
            PyErr_Clear();
        if (value != PyTuple_GET_ITEM(origin, 2))
            return 0;
    }
    return 1;
}

PyObject *known_form(PyObject *kernel, PyObject *arguments)
{
    PyObject *form = held(kernel, &Kernel__form), *forms = held(kernel, &Kernel__forms);
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    if (form == NULL || forms == NULL || !names_stand(held(kernel, &Kernel__origins)))
        return NULL;
    PyObject *types = held(form, &Form_types);
    int same = types != NULL && PyTuple_GET_SIZE(types) == count;
    for (Py_ssize_t i = 0; same && i < count; i++)
        same = PyTuple_GET_ITEM(types, i) == (PyObject *)Py_TYPE(PyTuple_GET_ITEM(arguments, i));
    if (!same) {
        types = PyTuple_New(count);
        if (types == NULL) {
            PyErr_Clear();
            return NULL;
        }
        for (Py_ssize_t i = 0; i < count; i++)
            PyTuple_SET_ITEM(types, i, Py_NewRef((PyObject *)Py_TYPE(PyTuple_GET_ITEM(arguments, i))));
        form = PyDict_GetItemWithError(forms, types);
        Py_DECREF(types);
        PyErr_Clear();
        if (form == NULL)
            return NULL;
        put(kernel, &Kernel__form, Py_NewRef(form));
    }
    PyObject *tuples = held(form, &Form_tuples);
    return held(form, &Form_lazy) == Py_False && tuples != NULL && PyTuple_GET_SIZE(tuples) == 0 ? form : NULL;
}

/* Whether the ints among the arguments fit 64 bits. */
static int ints_fit(PyObject *form, PyObject *arguments)
{
    PyObject *ints = held(form, &Form_ints);
    int overflow = ints == NULL;
    for (Py_ssize_t i = 0; !overflow && i < PyTuple_GET_SIZE(ints); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(ints, i));
        (void)PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(arguments, at), &overflow);
    }
    return !overflow;
}

/* A tensor cut into tiles of a shape that such tensors were cut into before, a new reference; NULL, perhaps with an exception. */
static PyObject *partition_of(PyObject *tensor, PyObject *shape)
{
    PyObject *traits = held(tensor, &Tensor_traits), *cuts = traits ? held(traits, &Traits_cuts) : NULL;
    PyObject *known = cuts ? PyDict_GetItemWithError(cuts, shape) : NULL;
    if (known == NULL)
        return NULL;
    Py_INCREF(known);
    PyObject *partition = instance(&Partition_traits);
    if (partition == NULL) {
        Py_DECREF(known);
        return NULL;
    }
    put(partition, &Partition_traits, known);
    put(partition, &Partition_tensor, Py_NewRef(tensor));
    put(partition, &Partition_tile_shape, Py_NewRef(shape));
    put(partition, &Partition_storage, Py_XNewRef(held(tensor, &Tensor_storage)));
    return partition;
}

/* Cut the arguments of a launch that `places` names; the new ones, or NULL, perhaps with an exception. */
static PyObject *cut_at(PyObject *arguments, PyObject *places, PyObject *shape)
{
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    PyObject *cut = PyTuple_New(count);
    for (Py_ssize_t i = 0; cut != NULL && i < count; i++)
        PyTuple_SET_ITEM(cut, i, Py_NewRef(PyTuple_GET_ITEM(arguments, i)));
    for (Py_ssize_t i = 0; cut != NULL && i < PyTuple_GET_SIZE(places); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i));
        PyObject *partition = at >= 0 && at < count ? partition_of(PyTuple_GET_ITEM(cut, at), shape) : NULL;
        if (partition == NULL || PyTuple_SetItem(cut, at, partition) != 0)
            Py_CLEAR(cut);
    }
    return cut;
}

int tile(PyObject *op, PyObject *shape)
{
    PyObject *form = held(op, &KernelLaunch__form), *known = form ? held(form, &Form_tiled) : NULL;
    PyObject *arguments = held(op, &KernelLaunch_arguments), *places, *tiled, *cut = NULL;
    if (known == NULL || !PyTuple_CheckExact(known) || !PyArg_ParseTuple(known, "O!O", &PyTuple_Type, &places, &tiled) ||
        arguments == NULL || !PyTuple_CheckExact(arguments))
        goto out;
    shape = PyLong_CheckExact(shape) ? PyTuple_Pack(1, shape) : Py_NewRef(shape);
    int is_plain = shape != NULL && PyTuple_CheckExact(shape);
    for (Py_ssize_t i = 0; is_plain && i < PyTuple_GET_SIZE(shape); i++)
        is_plain = PyLong_CheckExact(PyTuple_GET_ITEM(shape, i));
    if (is_plain)
        cut = cut_at(arguments, places, shape);
    Py_XDECREF(shape);
    if (cut != NULL) {
        put(op, &KernelLaunch__form, Py_NewRef(tiled));
        put(op, &KernelLaunch_arguments, cut);
    }
out:
    PyErr_Clear();
    return cut != NULL;
}

PyObject *current_site(void)
{
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    PyObject *inside = NULL, *site = NULL, *lasti = NULL;
    while (frame != NULL) {
        PyObject *globals = PyFrame_GetGlobals(frame), *module = PyDict_GetItemWithError(globals, names.module);
        inside = module ? PyDict_GetItemWithError(helpers.inside, module) : NULL;
        int running = inside == Py_True ? PySet_Contains(helpers.running, module) : 0;
        Py_DECREF(globals);
        PyFrameObject *back = inside == Py_True && running == 0 ? PyFrame_GetBack(frame) : NULL;
        if (back == NULL)
            break;
        Py_SETREF(frame, back);
    }
    if (frame == NULL)
        return Py_NewRef(Py_None);
    if (inside != Py_False) {
        PyErr_Clear();
        site = PyObject_CallOneArg(helpers.site_of, (PyObject *)frame);
    } else if ((lasti = PyLong_FromLong(PyFrame_GetLasti(frame))) != NULL && (site = PyTuple_New(2)) != NULL) {
        PyTuple_SET_ITEM(site, 0, (PyObject *)PyFrame_GetCode(frame));
        PyTuple_SET_ITEM(site, 1, lasti);
    } else {
        Py_XDECREF(lasti);
    }
    Py_DECREF(frame);
    return site;
}

/* The arguments with tensors in the places of arrays of other libraries, a new reference; NULL, perhaps with an exception, if there are
 * no arrays, or Python has to look at one. */
static PyObject *with_tensors(PyObject *arguments)
{
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    PyObject *taken = PyTuple_New(count);
    int arrays = 0;
    for (Py_ssize_t i = 0; taken != NULL && i < count; i++) {
        PyObject *argument = PyTuple_GET_ITEM(arguments, i), *tensor = NULL;
        if (Py_TYPE(argument) != Tensor_storage.owner && !PyFloat_CheckExact(argument) && !PyLong_CheckExact(argument))
            tensor = array_as_tensor(argument);
        arrays += tensor != NULL;
        PyTuple_SET_ITEM(taken, i, tensor != NULL ? tensor : Py_NewRef(argument));
        if (PyErr_Occurred())
            Py_CLEAR(taken);
    }
    if (arrays == 0)
        Py_CLEAR(taken);
    return taken;
}

/* `kernel(*args, **kwargs)` */
static PyObject *calls_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyTypeObject *type = KernelLaunch_kernel.owner;
    PyObject *form = kwargs == NULL && type != NULL ? known_form(self, args) : NULL, *arguments = NULL;
    if (form == NULL && kwargs == NULL && type != NULL) {
        arguments = with_tensors(args);
        form = arguments ? known_form(self, arguments) : NULL;
    } else if (form != NULL) {
        arguments = Py_NewRef(args);
    }
    if (form == NULL || !ints_fit(form, arguments)) {
        Py_XDECREF(arguments);
        if (PyErr_Occurred())
            return NULL;
        PyObject *call = PyMethod_New(helpers.call, self), *op = call ? PyObject_Call(call, args, kwargs) : NULL;
        Py_XDECREF(call);
        return op;
    }
    Py_INCREF(form);
    PyObject *site = current_site(), *op = site ? type->tp_alloc(type, 0) : NULL;
    if (op == NULL) {
        Py_DECREF(form);
        Py_DECREF(arguments);
        Py_XDECREF(site);
        return NULL;
    }
    put(op, &KernelLaunch__site, site);
    put(op, &KernelLaunch__form, form);
    put(op, &KernelLaunch__fresh, Py_NewRef(Py_None));
    put(op, &KernelLaunch__spent, Py_NewRef(Py_False));
    put(op, &KernelLaunch__consumed, Py_NewRef(Py_False));
    put(op, &KernelLaunch_kernel, Py_NewRef(self));
    put(op, &KernelLaunch_arguments, arguments);
    put(op, &KernelLaunch__options, Py_XNewRef(held(self, &Kernel__options)));
    put(op, &KernelLaunch__label, Py_XNewRef(held(self, &Kernel_label)));
    return op;
}

PyObject *make_calls_type(void)
{
    static PyType_Slot slots[] = {{Py_tp_doc, "What calling a kernel does."}, {Py_tp_call, calls_call}, {0, NULL}};
    static PyType_Spec spec = {
        .name = "tilekit._native._launch.Calls", .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .slots = slots,
    };
    return PyType_FromSpec(&spec);
}

