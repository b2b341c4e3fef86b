/* Calling a kernel: the op that describes the launch, and the plan that it is made by. As `Kernel._build` and `Form.plan`. */
#include "_launch.h"

enum { MOST_ARGUMENTS = 64 };

static struct {
    PyObject *traits, *build, *module;
} name;

/* As `known_plan`; `last` is what it found last, if anything. */
static PyObject *look_up(PyObject *form, PyObject *last, PyObject *arguments, PyObject *options)
{
    PyObject *constants = held(form, &Form_constants), *plans = held(form, &Form_plans);
    Py_ssize_t count = PyTuple_GET_SIZE(arguments), size = 0;
    if (constants == NULL || plans == NULL || PyBytes_GET_SIZE(constants) != count || count > MOST_ARGUMENTS)
        return NULL;
    const char *kinds = PyBytes_AS_STRING(constants);
    PyObject *parts[MOST_ARGUMENTS], *made[MOST_ARGUMENTS], *plan = NULL; /* parts are borrowed; what nobody has is made anew */
    int mades = 0;
    int same = last != NULL && PyTuple_CheckExact(last) && PyTuple_GET_ITEM(last, 1) == options;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *argument = PyTuple_GET_ITEM(arguments, i), *part = argument;
        if (kinds[i] == '-')
            continue;
        if (kinds[i] == '?')
            goto out;
        if (kinds[i] == 'T') {
            part = held(argument, Py_TYPE(argument) == Tensor_traits.owner ? &Tensor_traits : &Partition_traits);
            if (part == NULL) {
                part = PyObject_GetAttr(argument, name.traits);
                if (part == NULL) {
                    PyErr_Clear();
                    goto out;
                }
                made[mades++] = part;
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
    while (mades > 0)
        Py_DECREF(made[--mades]);
    return plan;
}

PyObject *known_plan(PyObject *form, PyObject *arguments, PyObject *options)
{
    /* Traits that are not there yet are made by Python: meanwhile other threads may put something else in their place. */
    PyObject *last = Py_XNewRef(held(form, &Form_last));
    Py_INCREF(form);
    Py_INCREF(options);
    PyObject *plan = look_up(form, last, arguments, options);
    Py_XDECREF(last);
    Py_DECREF(form);
    Py_DECREF(options);
    return plan;
}

PyObject *known_form(PyObject *kernel, PyObject *arguments)
{
    PyObject *form = held(kernel, &Kernel__form), *forms = held(kernel, &Kernel__forms);
    PyObject *functions = held(kernel, &Kernel__functions);
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    if (form == NULL || forms == NULL || functions == NULL || !PySet_Check(functions) || PySet_GET_SIZE(functions) != 0)
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

/* What `site_of` says of the code that is running; NULL with an exception. */
static PyObject *site(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL)
        return Py_NewRef(Py_None);
    PyObject *globals = PyFrame_GetGlobals(frame);
    PyObject *module = PyDict_GetItemWithError(globals, name.module);
    PyObject *inside = module ? PyDict_GetItemWithError(helpers.inside, module) : NULL;
    Py_DECREF(globals);
    if (inside != Py_False) {
        PyErr_Clear();
        return PyObject_CallOneArg(helpers.site_of, (PyObject *)frame);
    }
    PyObject *place = PyTuple_New(2), *lasti = place ? PyLong_FromLong(PyFrame_GetLasti(frame)) : NULL;
    if (lasti == NULL) {
        Py_XDECREF(place);
        return NULL;
    }
    PyTuple_SET_ITEM(place, 0, (PyObject *)PyFrame_GetCode(frame));
    PyTuple_SET_ITEM(place, 1, lasti);
    return place;
}

/* `kernel(*args, **kwargs)` */
static PyObject *calls_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyTypeObject *type = KernelLaunch_kernel.owner;
    PyObject *form = kwargs == NULL && type != NULL ? known_form(self, args) : NULL;
    if (form == NULL || !ints_fit(form, args)) {
        PyObject *build = PyObject_GetAttr(self, name.build);
        PyObject *op = build ? PyObject_Call(build, args, kwargs) : NULL;
        Py_XDECREF(build);
        return op;
    }
    Py_INCREF(form);
    PyObject *place = site(), *op = place ? type->tp_alloc(type, 0) : NULL;
    if (op == NULL) {
        Py_DECREF(form);
        Py_XDECREF(place);
        return NULL;
    }
    put(op, &KernelLaunch__site, place);
    put(op, &KernelLaunch__form, form);
    put(op, &KernelLaunch__fresh, Py_NewRef(Py_None));
    put(op, &KernelLaunch__spent, Py_NewRef(Py_False));
    put(op, &KernelLaunch__consumed, Py_NewRef(Py_False));
    put(op, &KernelLaunch_kernel, Py_NewRef(self));
    put(op, &KernelLaunch_arguments, Py_NewRef(args));
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
    static const Text texts[] = {
        {&name.traits, "traits"}, {&name.build, "_build"}, {&name.module, "__name__"}, {NULL, NULL},
    };
    return intern(texts) ? PyType_FromSpec(&spec) : NULL;
}

