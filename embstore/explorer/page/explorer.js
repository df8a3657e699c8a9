// node_modules/preact/dist/preact.mjs
var n$1;
var t$2;
var r$2;
var u$3;
var i$2;
var f$3;
var o$3;
var e$2;
var l$2;
var c$2;
var a$3;
var s$2;
var h$3 = Symbol.for("pv");
var p$3 = {};
var y$3 = [];
var v$2 = /^m(i|n|o|s|text|space)$/;
var w$3 = Array.isArray;
var d$3 = y$3.slice;
var _$2 = Object.assign;
function g$3(n) {
	n && n.parentNode && n.remove();
}
function k$2(n, t, r) {
	var u, i, f, o = {}, e = arguments.length;
	for (f in t) "key" == f ? u = t[f] : "ref" == f && "function" != typeof n ? i = t[f] : o[f] = t[f];
	return e > 2 && (o.children = e > 3 ? d$3.call(arguments, 2) : r), m$3(n, o, u, i, null);
}
function m$3(r, u, i, f, o) {
	var e = {
		type: r,
		props: u,
		key: i,
		ref: f,
		__k: null,
		__: null,
		__b: 0,
		__e: null,
		__c: null,
		constructor: h$3,
		__v: o || ++t$2,
		__i: -1,
		__u: 0
	};
	return !o && n$1.vnode && n$1.vnode(e), e;
}
function $(n) {
	return n.children;
}
function x$1(n, t) {
	this.props = n, this.context = t, this.__g = 0;
}
function S$1(n, t) {
	if (null == t) return n.__ && S$1(n.__, n.__i + 1);
	for (var r; t < n.__k.length; t++) if ((r = n.__k[t]) && r.__e) return r.__e;
	return "function" != typeof n.type || n.props.__P ? null : S$1(n);
}
function C$1(t) {
	var r, u = t.__v, i = u.__e, f = [], o = [], e = t.__P;
	e && ((r = _$2({ constructor: h$3 }, u)).__v = u.__v + 1, n$1.vnode && n$1.vnode(r), z$1(e, r, u, t.__n, e.namespaceURI, 32 & u.__u ? [i] : null, f, i || S$1(u), 32 & u.__u, o), r.__v = u.__v, r.__.__k[r.__i] = r, E$1(f, r, o), u.__ = u.__e = null, r.__e != i && j$2(r));
}
function j$2(n) {
	if ((n = n.__) && n.__c && !n.props.__P) return n.__e = null, n.__k.some(function(t) {
		return t && (n.__e = t.__e);
	}), j$2(n);
}
function L(t) {
	(8 & t.__g || (t.__g |= 8, u$3.push(t), f$3++)) && i$2 == n$1.debounceRendering || ((i$2 = n$1.debounceRendering) || queueMicrotask)(H);
}
function H() {
	try {
		for (var n, t = 1; u$3.length;) u$3.length > t && u$3.sort(o$3), n = u$3.shift(), t = u$3.length, 8 & n.__g && C$1(n);
	} finally {
		(f$3 = u$3.length) && (i$2 || queueMicrotask)(H);
	}
}
function I(n, t, r, u, i, f, o, e, l, c, a) {
	var s, h, v, w, d, _, g = u.__k || y$3, k = t.length;
	for (l = q(r, t, g, l, k), s = 0; s < k; s++) null != (v = r.__k[s]) && (h = ~v.__i && g[v.__i] || p$3, v.__i = s, _ = z$1(n, v, h, i, f, o, e, l, c, a), w = v.__e, (h.ref != v.ref || 8 & h.__u) && (h.ref && G$1(h.ref, null, v, h), v.ref && a.push(v.ref, v.__c || w, v)), d = d || w, 4 & v.__u ? (l = A$2(v, l, n, !h.__v), h.__e && (h.__e = null)) : "function" == typeof v.type && void 0 !== _ ? l = _ : w && (l = w.nextSibling), v.__u &= -21);
	return r.__e = d, l;
}
function q(n, t, r, u, i) {
	var f, o, e, l, c, a, s, p, y, v = r.length, d = v, _ = 0, g = 0, k = n.__k = Array(i);
	for (f = 0; f < i; f++) null != (o = t[f]) && "boolean" != typeof o && "function" != typeof o ? ("object" != typeof o || o.constructor === String ? o = k[f] = m$3(null, o) : w$3(o) ? o = k[f] = m$3($, { children: o }) : o.constructor === h$3 && o.__b ? o = k[f] = m$3(o.type, o.props, o.key, o.ref, o.__v) : k[f] = o, l = f + _, o.__ = n, o.__b = n.__b + 1, e = null, ~(c = o.__i = P(o, r, l, d)) && (d--, (e = r[c]) && (e.__u |= 2)), e && e.__v ? (o.__u |= 16, c == l - 1 ? _-- : c == l + 1 ? _++ : c != l && (c > l ? _-- : _++, g = 1)) : (~c || (i > v ? _-- : i < v && _++), "function" != typeof o.type && (o.__u |= 4))) : k[f] = null;
	if (g) {
		for (a = [], s = [], f = 0; f < i; f++) if ((o = k[f]) && 16 & o.__u) {
			for (_ = 0, p = a.length; _ < p;) a[y = _ + p >> 1] < o.__i ? _ = y + 1 : p = y;
			a[_] = o.__i, s[f] = _ + 1;
		}
		for (_ = a.length; f--;) s[f] && (s[f] == _ ? _-- : k[f].__u |= 4);
	}
	if (d) for (f = 0; f < v; f++) !(e = r[f]) || 2 & e.__u || (e.__e == u && (u = S$1(e)), J(e, e));
	return u;
}
function A$2(n, t, r, u) {
	var i, f, o, e;
	if ("function" == typeof n.type) {
		if (n.props.__P) return t;
		if (i = n.__k) for (f = 0; f < i.length; f++) i[f] && (i[f].__ = n, t = A$2(i[f], t, r, !1));
		return t;
	}
	for (t && !t.parentNode && (t = S$1(n)) && !t.parentNode && (t = null), o = n.__e, e = t; e && 8 == e.nodeType;) e = e.nextSibling;
	for (o != e && (!u && r.moveBefore && o.parentNode ? r.moveBefore(o, t) : r.insertBefore(o, t || null)), t = o; (t = t && t.nextSibling) && 8 == t.nodeType && !t.data.startsWith("$s"););
	return t;
}
function P(n, t, r, u) {
	var i, f = n.key, o = n.type, e = t[r], l = e && !(2 & e.__u);
	if (null === e && null == f || l && f == e.key && o == e.type) return r;
	if (u > (l ? 1 : 0)) {
		for (i = r - 1; i >= 0; i--) if ((e = t[i]) && !(2 & e.__u) && f == e.key && o == e.type) return i;
		for (i = r + 1; i < t.length; i++) if ((e = t[i]) && !(2 & e.__u) && f == e.key && o == e.type) return i;
	}
	return -1;
}
function T(n, t, r) {
	r ??= "", "-" == t[0] ? n.setProperty(t, r) : n[t] = r;
}
function N(n, t, r, u, i) {
	var f, o;
	if ("style" == t) if ("string" == typeof r) n.style.cssText = r;
	else {
		if ("string" == typeof u && (n.style.cssText = u = ""), u) for (t in u) r && t in r || T(n.style, t);
		if (r) for (t in r) u && r[t] == u[t] || T(n.style, t, r[t]);
	}
	else if ("o" == t[0] && "n" == t[1]) "function" != typeof r && (r = null), "function" != typeof u && (u = null), (n.__e || (n.__e = {}))[t] = r, r && u || (o = a$3[t] || (a$3[t] = V(t)), (n.__a || (n.__a = {}))[t] = c$2, f = t != (t = t.replace(l$2, "$1")), (t = t.slice(2))[0] < "a" && (t = t.toLowerCase()), r ? n.addEventListener(t, o, f) : n.removeEventListener(t, o, f));
	else {
		if ("http://www.w3.org/2000/svg" == i) t = t.replace(/xlink(H|:h)/, "h").replace(/sName$/, "s");
		else if ("width" != t && "height" != t && "href" != t && "list" != t && "form" != t && "tabIndex" != t && "download" != t && "rowSpan" != t && "colSpan" != t && "role" != t && "popover" != t && t in n) try {
			n[t] = null == r ? "" : r;
			return;
		} catch (n) {}
		if ("function" == typeof r) return;
		null == r || !1 === r && "-" != t[4] ? n.removeAttribute(t) : n.setAttribute(t, "popover" == t && 1 == r ? "" : r);
	}
}
function V(t) {
	return function(r) {
		var u = this.__e;
		if (u) {
			if (u = u[t], null == r[e$2]) r[e$2] = c$2++;
			else if (r[e$2] < this.__a[t]) return;
			return u(n$1.event ? n$1.event(r) : r);
		}
	};
}
function z$1(t, r, u, i, f, o, e, l, c, a) {
	var s, p, v, d, k, b, m, M, C, j, L, H, q, A, O, P, T, N, V = r.type;
	if (r.constructor !== h$3) return null;
	128 & u.__u && (c = 32 & u.__u, s = u.__c.__z) && (r.__u |= c, p = o = [], 8 == s.nodeType ? l = B$1(s, o) : o.push(s), l = o[0] || l), (s = n$1.__b) && s(r);
	n: if ("function" == typeof V) {
		v = e.length;
		try {
			if (M = r.props, C = (s = V.prototype) && s.render, j = (s = V.contextType) && i[s.__c], L = s ? j ? j.props.value : s.__ : i, (d = u.__c) ? (r.__c = d, 2 & d.__g && (d.__g |= 1)) : (C ? r.__c = d = new V(M, L) : (r.__c = d = new x$1(M, L), d.constructor = V, d.render = K), j && j.sub(d), d.state || (d.state = {}), d.__n = i, d.__g |= 8, d.__h = [], d.__k = []), C && (d.__s || (d.__s = d.state), V.getDerivedStateFromProps && (d.__s == d.state && (d.__s = _$2({}, d.__s)), _$2(d.__s, V.getDerivedStateFromProps(M, d.__s)))), k = d.props, b = d.state, d.__v = r, u.__c) {
				if (M !== k && C && !V.getDerivedStateFromProps && d.componentWillReceiveProps && d.componentWillReceiveProps(M, L), r.__v == u.__v && !(8 & d.__g) || !(4 & d.__g) && d.shouldComponentUpdate && !1 === d.shouldComponentUpdate(M, d.__s, L)) {
					r.__v != u.__v && (d.props = M, d.state = d.__s, d.__g &= -9), r.__e = u.__e, r.__k = u.__k, r.__k.some(function(n) {
						n && (n.__ = r);
					}), y$3.push.apply(d.__h, d.__k), d.__k = [], d.__h.length && e.push(d), l = S$1(u);
					break n;
				}
				d.componentWillUpdate && d.componentWillUpdate(M, d.__s, L), C && d.componentDidUpdate && d.__h.push(function() {
					d.componentDidUpdate(k, b, m);
				});
			} else C && !V.getDerivedStateFromProps && d.componentWillMount && d.componentWillMount(), C && d.componentDidMount && d.__h.push(d.componentDidMount);
			d.context = L, d.props = M, d.__P = t, d.__g &= -5, H = n$1.__r, q = C ? 25 : 0;
			do
				d.__g &= -9, H && H(r), s = d.render(d.props, d.state = d.__s, d.context);
			while (8 & d.__g && ++q < 25);
			C && (y$3.push.apply(d.__h, d.__k), d.__k = []), d.state = d.__s, d.getChildContext && (i = _$2({}, i, d.getChildContext())), C && u.__c && d.getSnapshotBeforeUpdate && (m = d.getSnapshotBeforeUpdate(k, b)), A = s && s.type === $ && null == s.key ? s.props.children : s, M.__P && (s = l, f = (t = M.__P).namespaceURI, c = o = null, u.props && u.props.__P != t && (u.__k.some(function(n) {
				n && J(n, n);
			}), u.__k = null), l = u.__k ? S$1(u, 0) : null), l = I(t, w$3(A) ? A : [A], r, u, i, f, o, e, l, c, a), M.__P && (r.__e = null, l = s), r.__u &= -161, p && p.some(g$3), d.__h.length && e.push(d), 1 & d.__g && (d.__g &= -4);
		} catch (t) {
			if (e.length = v, r.__v = null, c || o) if (t && t.then) {
				if (r.__u |= 128 | c, o) {
					for (~(T = o.indexOf(l || void 0)) || (T = o.length); (N = o[T - 1]) && 8 == N.nodeType;) T--;
					for (; T < o.length; T++) if (N = o[T]) if (o[T] = null, O) {
						if (N == P) break;
					} else {
						if (8 != N.nodeType) break;
						N.data.startsWith("$s") && (P = B$1(O = N));
					}
				}
				if (!O) {
					for (; l && 8 == l.nodeType && l.nextSibling;) l = l.nextSibling;
					O = l;
				}
				(s = B$1(O = r.__c.__z || (r.__c.__z = O))) ? (r.__e = O, l = s) : r.__e = l, l = l && l.nextSibling;
			} else o && o.some(g$3);
			else r.__e = u.__e;
			r.__k || (r.__k = u.__k || []), t && t.then || D$1(r), n$1.__e(t, r, u);
		}
	} else l = r.__e = F$1(u.__e, r, u, i, f, o, e, c, a, t);
	return (s = n$1.diffed) && s(r), l;
}
function B$1(n, t) {
	if (n && 8 == n.nodeType && n.data.startsWith("$s")) for (var r = 1; n = n.nextSibling;) {
		if (8 == n.nodeType) {
			if (n.data.startsWith("$s")) r++;
			else if (n.data.startsWith("/$s") && !--r) return n;
		}
		t && t.push(n);
	}
}
function D$1(n) {
	n && (n.__c && (n.__c.__g |= 4), n.__k && n.__k.some(D$1));
}
function E$1(t, r, u) {
	for (var i = 0; i < u.length;) G$1(u[i++], u[i++], u[i++]);
	n$1.__c && n$1.__c(r, t), t.some(function(r) {
		try {
			t = r.__h, r.__h = [], t.some(function(n) {
				n.call(r);
			});
		} catch (t) {
			n$1.__e(t, r.__v);
		}
	});
}
function F$1(t, r, u, i, f, o, e, l, c, a) {
	var s, h, y, _, k, b, m, M, $ = u.props || p$3, x = r.props, C = r.type;
	if ("svg" == C ? f = "http://www.w3.org/2000/svg" : "math" == C ? f = "http://www.w3.org/1998/Math/MathML" : f || (f = "http://www.w3.org/1999/xhtml"), o) {
		for (s = 0; s < o.length; s++) if ((k = o[s]) && (C ? k.localName == C : 3 == k.nodeType)) {
			t = k, o[s] = null;
			break;
		}
	}
	if (!t) {
		if (M = a.ownerDocument || document, !C) return M.createTextNode(x);
		t = M.createElementNS(f, C, x.is ? x : a), l && (n$1.__m && n$1.__m(r, o), l = !1), o = null;
	}
	if (C) {
		if (a = "template" == C && t.content || t, o = "textarea" == C && null != x.defaultValue ? null : o && d$3.call(a.childNodes), !l && o) for ($ = {}, s = 0; s < t.attributes.length; s++) $[(k = t.attributes[s]).name] = k.value;
		for (s in $) k = $[s], "dangerouslySetInnerHTML" == s ? y = k : "children" == s || s in x || "value" == s && "defaultValue" in x || "checked" == s && "defaultChecked" in x || N(t, s, null, k, f);
		for (s in x) k = x[s], "children" == s ? _ = k : "dangerouslySetInnerHTML" == s ? h = k : "value" == s ? b = k : "checked" == s ? m = k : l && "function" != typeof k || $[s] === k || N(t, s, k, $[s], f);
		h ? (l || y && (h.__html == y.__html || h.__html == t.innerHTML) || (t.innerHTML = h.__html), r.__k = []) : (y && (t.textContent = ""), ("foreignObject" == C || "http://www.w3.org/1998/Math/MathML" == f && v$2.test(C)) && (f = "http://www.w3.org/1999/xhtml"), I(a, w$3(_) ? _ : [_], r, u, i, f, o, e, o ? o[0] : u.__k && S$1(u, 0), l, c), o && o.some(g$3)), l && "textarea" != C || (s = "value", "progress" == C && null == b ? t.removeAttribute(s) : null == b || b === t[s] && ("progress" != C || b) || N(t, s, b, $[s], f), s = "checked", null != m && m != t[s] && N(t, s, m, $[s], f));
	} else $ === x || l && t.data == x || (t.data = x);
	return t;
}
function G$1(t, r, u, i) {
	try {
		"function" == typeof t ? r ? r.__x = t(r) || 1 : i && (i = i.__c || i.__e) && (r = i.__x) && (i.__x = null, "function" == typeof r ? r() : t(null)) : t.current = r;
	} catch (t) {
		n$1.__e(t, u);
	}
}
function J(t, r, u) {
	var i, f, o, e;
	if (n$1.unmount && n$1.unmount(t), !(i = t.ref) || i.current && i.current != t.__e || G$1(i, null, r, t), i = t.__c) {
		if (i.componentWillUnmount) try {
			i.componentWillUnmount();
		} catch (t) {
			n$1.__e(t, r);
		}
		i.__P = i.__n = null;
	}
	if (i = t.__k) for (e = 0; e < i.length; e++) i[e] && J(i[e], r, "function" != typeof t.type || u && !t.props.__P);
	!u && (i = t.__c) && (i = i.__z) && (f = B$1(i, o = [])) && (i == t.__e && o.some(g$3), g$3(f), g$3(i)), u || g$3(t.__e), t.__e = t.__c = t.__ = null;
}
function K(n, t, r) {
	return this.constructor(n, r);
}
function Q(t, r) {
	var u, i, f, o;
	n$1.__ && n$1.__(t, r), 9 == r.nodeType && (r = r.documentElement), i = (u = t && 32 & t.__u) ? null : r.__k, r.__k = m$3($, { children: [t] }), f = [], o = [], z$1(r, r.__k, i || p$3, p$3, r.namespaceURI, i ? null : r.firstChild ? d$3.call(r.childNodes) : null, f, i ? i.__e : r.firstChild, u, o), E$1(f, r.__k, o), r.__k.props.children = null;
}
function U(n) {
	function t(n) {
		var r, u;
		return this.getChildContext || (r = /* @__PURE__ */ new Set(), (u = {})[t.__c] = this, this.getChildContext = function() {
			return u;
		}, this.shouldComponentUpdate = function(n) {
			this.props.value != n.value && r.forEach(function(n) {
				n.__g |= 4, L(n);
			});
		}, this.sub = function(n) {
			r.add(n);
			var t = n.componentWillUnmount;
			n.componentWillUnmount = function() {
				r.delete(n), t && t.call(n);
			};
		}), n.children;
	}
	return t.__c = "__cC" + s$2++, t.__ = n, t.Provider = (t.Consumer = function(n, t) {
		return n.children(t);
	}).contextType = t, t;
}
n$1 = { __e: function(n, t, r, u) {
	for (var i, o, e; t = t.__;) if ((i = t.__c) && !(1 & i.__g)) {
		i.__g |= 4;
		try {
			if ((e = (o = i.constructor) && o.getDerivedStateFromError) && i.setState(o.getDerivedStateFromError(n)), i.componentDidCatch && (i.componentDidCatch(n, u || {}), e = 1), e && 8 & i.__g) return void (i.__g |= 2);
		} catch (t) {
			n = t;
		}
	}
	throw f$3 = 0, n;
} }, t$2 = 0, r$2 = function(n) {
	return null != n && n.constructor === h$3;
}, x$1.prototype.setState = function(n, t) {
	var r = this.__s;
	r && r != this.state || (r = this.__s = _$2({}, this.state)), "function" == typeof n && (n = n(_$2({}, r), this.props)), n && (_$2(r, n), this.__v && (t && this.__k.push(t), L(this)));
}, x$1.prototype.forceUpdate = function(n) {
	this.__v && (this.__g |= 4, n && this.__h.push(n), L(this));
}, x$1.prototype.render = $, u$3 = [], f$3 = 0, o$3 = function(n, t) {
	return n.__v.__b - t.__v.__b;
}, e$2 = Symbol(), l$2 = /(PointerCapture)$|Capture$/i, c$2 = 0, a$3 = {}, s$2 = 0;
// node_modules/preact/hooks/dist/hooks.mjs
var t$1;
var r$1;
var u$2;
var i$1;
var o$2 = Object.is;
var f$2 = 0;
var c$1 = [];
var e$1 = [];
var a$2 = n$1;
var v$1 = a$2.__b;
var l$1 = a$2.__r;
var m$2 = a$2.diffed;
var h$2 = a$2.__c;
var s$1 = a$2.unmount;
var p$2 = a$2.__;
function y$2(n, t) {
	a$2.__h && a$2.__h(r$1, n, f$2 || t), f$2 = 0;
	var u = r$1.__H || (r$1.__H = {
		__: [],
		__h: []
	});
	return n >= u.__.length && u.__.push({}), u.__[n];
}
function d$2(n) {
	return f$2 = 1, _$1(G, n);
}
function _$1(n, u, i) {
	var f = y$2(t$1++, 2);
	if (f.t = n, !f.__c && (f.__ = [i ? i(u) : G(void 0, u), function(n) {
		var t = (f.__N || f.__)[0], r = f.t(t, n);
		o$2(t, r) || (f.__N = [r, f.__[1]], f.__c.setState({}));
	}], f.__c = r$1, !r$1.__f)) {
		r$1.__f = !0;
		var c = r$1.shouldComponentUpdate;
		r$1.shouldComponentUpdate = function(n, t, r) {
			var u = this.__H;
			if (!u) return !0;
			var i = !1, f = this.props != n;
			if (u.__.some(function(n) {
				n.__N && (i = !0, o$2(n.__[0], n.__N[0]) || (f = !0));
			}), c) {
				var e = c.call(this, n, t, r);
				return i ? e || f : e;
			}
			return !i || f;
		};
	}
	return f.__;
}
function A$1(n, u) {
	var i = y$2(t$1++, 3);
	!a$2.__s && E(i.__H, u) && (i.__P = !0, i.__ = n, i.u = u, r$1.__H.__h.push(i));
}
function w$2(n, r) {
	var u = y$2(t$1++, 7);
	return E(u.__H, r) && (u.__ = n(), u.__H = r), u.__;
}
function j$1(n) {
	var u = r$1.context[n.__c], i = y$2(t$1++, 9);
	return i.c = n, u ? (i.__ ?? (i.__ = !0, u.sub(r$1)), u.props.value) : n.__;
}
function g$2() {
	var n;
	do {
		for (; n = e$1.shift();) try {
			C(n);
		} catch (t) {
			a$2.__e(t, { __: (n = n.__P) && n.__v });
		}
		for (; n = c$1.shift();) {
			var t = n.__H;
			if (n.__P && t) try {
				t.__h.some(C), t.__h.some(D), t.__h = [];
			} catch (r) {
				t.__h = [], a$2.__e(r, n.__v);
			}
		}
	} while (e$1.length);
}
a$2.__b = function(n) {
	r$1 = null, v$1 && v$1(n);
}, a$2.__ = function(n, t) {
	n && t.__k && t.__k.__m && (n.__m = t.__k.__m), p$2 && p$2(n, t);
}, a$2.__r = function(n) {
	l$1 && l$1(n), t$1 = 0;
	var i = (r$1 = n.__c).__H;
	i && (u$2 == r$1 ? r$1.__h = [] : (i.__h.some(C), i.__h.some(D), t$1 = 0), i.__h = [], i.__.some(function(n) {
		n.__N && (n.__ = n.__N), n.u = n.__N = void 0;
	})), u$2 = r$1;
}, a$2.diffed = function(n) {
	m$2 && m$2(n);
	var t = n.__c;
	t && t.__H && (t.__H.__h.length && B(c$1.push(t)), t.__H.__.some(function(n) {
		n.u && (n.__H = n.u);
	})), u$2 = r$1 = null;
}, a$2.__c = function(n, t) {
	t.some(function(n) {
		try {
			n.__h.some(C), n.__h = n.__h.filter(function(n) {
				return !n.__ || D(n);
			});
		} catch (t) {
			n.__h = [function() {
				throw t;
			}];
		}
	}), h$2 && h$2(n, t);
}, a$2.unmount = function(n) {
	s$1 && s$1(n);
	var t, r, u = n.__c;
	u && u.__H && (u.__H.__.some(function(u) {
		try {
			if (u.__P && u.__c) {
				if (void 0 === r) {
					for (r = n.__; r && (!r.__c || !r.__c.__P);) r = r.__;
					r = r && r.__c;
				}
				u.__P = r, B(e$1.push(u));
			} else C(u);
		} catch (n) {
			t = n;
		}
	}), u.__H = void 0, t && a$2.__e(t, u.__v));
};
var k$1 = "function" == typeof requestAnimationFrame;
function z(n) {
	var t, r = function() {
		clearTimeout(u), k$1 && cancelAnimationFrame(t), setTimeout(n);
	}, u = setTimeout(r, 35);
	k$1 && (t = requestAnimationFrame(r));
}
function B(n) {
	1 != n && i$1 == a$2.requestAnimationFrame || ((i$1 = a$2.requestAnimationFrame) || z)(g$2);
}
function C(n) {
	var t = r$1, u = n.__c;
	"function" == typeof u && (n.__c = void 0, u()), r$1 = t;
}
function D(n) {
	var t = r$1;
	n.__c = n.__(), r$1 = t;
}
function E(n, t) {
	return !n || n.length != t.length || t.some(function(t, r) {
		return !o$2(t, n[r]);
	});
}
function G(n, t) {
	return "function" == typeof t ? t(n) : t;
}
// src/app.tsx
var AppContext = U(null);
/** The source, the state and the store that a view reads. */
function useApp() {
	const app = j$1(AppContext);
	const values = app.state.values.value;
	const index = Math.min(Number(values.store) || 0, app.stores.length - 1);
	const store = app.stores[index];
	const asked = Number(values.layer ?? NaN);
	const layer = store.layers.includes(asked) ? asked : store.layers[store.layers.length >> 1];
	return {
		...app,
		values,
		store,
		index,
		layer,
		go: app.state.go,
		href: app.state.href
	};
}
// node_modules/preact/jsx-runtime/dist/jsxRuntime.mjs
var f$1 = Symbol.for("pv");
var o$1 = 0;
Array.isArray;
function a$1(t, e, n, u, a, i) {
	e || (e = {});
	var c, l, p = e;
	if ("ref" in p && "function" != typeof t) for (l in p = {}, e) "ref" == l ? c = e[l] : p[l] = e[l];
	var s = {
		type: t,
		props: p,
		key: n,
		ref: c,
		__k: null,
		__: null,
		__b: 0,
		__e: null,
		__c: null,
		constructor: f$1,
		__v: --o$1,
		__i: -1,
		__u: 0
	};
	return (a || i) && (s.__source = a, s.__self = i), n$1.vnode && n$1.vnode(s), s;
}
// src/parts/link.tsx
/** A link to another state of the page: an ordinary address, followed without loading the page again. */
function Link({ to, children, current, class: name, title, label }) {
	const { go, href } = useApp();
	return /* @__PURE__ */ a$1("a", {
		href: href(to),
		class: name,
		title,
		"aria-label": label,
		"aria-current": current ? "page" : void 0,
		onClick: (event) => {
			if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
			event.preventDefault();
			go(to);
		},
		children
	});
}
// src/parts/states.tsx
/** What a part shows before anything is asked, or when the answer holds nothing. */
function Empty({ title, children }) {
	return /* @__PURE__ */ a$1("div", {
		class: "state",
		children: [/* @__PURE__ */ a$1("strong", { children: title }), children && /* @__PURE__ */ a$1("p", { children })]
	});
}
/** A query under way: a bar, with numbers once it reports progress. */
function Loading({ what, progress }) {
	const known = progress?.total ? progress : void 0;
	return /* @__PURE__ */ a$1("div", {
		class: "state",
		role: "status",
		children: [/* @__PURE__ */ a$1("progress", {
			"aria-label": `Loading ${what}`,
			max: known?.total ?? void 0,
			value: known?.done
		}), /* @__PURE__ */ a$1("p", { children: [
			"Loading ",
			what,
			known && ` · ${Math.floor(100 * known.done / known.total)} %`
		] })]
	});
}
function ErrorState({ error, retry }) {
	return /* @__PURE__ */ a$1("div", {
		class: "state error",
		role: "alert",
		children: [
			/* @__PURE__ */ a$1("strong", { children: "This did not work" }),
			/* @__PURE__ */ a$1("p", {
				dir: "auto",
				children: error
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				onClick: retry,
				children: "Try again"
			})
		]
	});
}
/** The answer of a query once it is here, until then its state; a newer answer under way dims the older one. */
function Answer({ of, what, children }) {
	if (of.status === "error") return /* @__PURE__ */ a$1(ErrorState, {
		error: of.error,
		retry: of.retry
	});
	if (of.value === void 0) return of.status === "idle" ? null : /* @__PURE__ */ a$1(Loading, {
		what,
		progress: of.progress
	});
	const busy = of.status === "loading";
	return /* @__PURE__ */ a$1("div", {
		class: busy ? "answer busy" : "answer",
		"aria-busy": busy,
		children: children(of.value)
	});
}
// node_modules/@preact/signals-core/dist/signals-core.module.js
var i = Symbol.for("preact-signals");
function t() {
	if (!(v > 1)) {
		var i, t = !1;
		(function() {
			var i = c;
			c = void 0;
			while (void 0 !== i) {
				var t = i.S;
				if (t.v === i.v) {
					for (var r = t.t; void 0 !== r; r = r.x) if (r.i === i.i) r.i = t.i;
				}
				i = i.o;
			}
		})();
		while (void 0 !== h$1) {
			var r = h$1;
			h$1 = void 0;
			s++;
			while (void 0 !== r) {
				var n = r.u;
				r.u = void 0;
				r.f &= -3;
				if (!(8 & r.f) && w$1(r)) try {
					r.c();
				} catch (r) {
					if (!t) {
						i = r;
						t = !0;
					}
				}
				r = n;
			}
		}
		s = 0;
		v--;
		if (t) throw i;
	} else v--;
}
function r(i) {
	if (v > 0) return i();
	u = ++e;
	v++;
	try {
		return i();
	} finally {
		t();
	}
}
var n;
var o = void 0;
function f(i) {
	var t = o, r = n;
	o = void 0;
	n = void 0;
	try {
		return i();
	} finally {
		o = t;
		n = r;
	}
}
var h$1 = void 0;
var v = 0;
var s = 0;
var e = 0;
var u = 0;
var c = void 0;
var a = 0;
function d$1(i) {
	if (void 0 !== o) {
		var t = i.n;
		if (void 0 === t || t.t !== o) {
			t = {
				i: 0,
				S: i,
				p: o.s,
				n: void 0,
				t: o,
				e: void 0,
				x: void 0,
				r: t
			};
			if (void 0 !== o.s) o.s.n = t;
			o.s = t;
			i.n = t;
			if (32 & o.f) i.S(t);
			return t;
		} else if (-1 === t.i) {
			t.i = 0;
			if (void 0 !== t.n) {
				t.n.p = t.p;
				if (void 0 !== t.p) t.p.n = t.n;
				t.p = o.s;
				t.n = void 0;
				o.s.n = t;
				o.s = t;
			}
			return t;
		}
	}
}
function l(i, t) {
	this.v = i;
	this.i = 0;
	this.n = void 0;
	this.t = void 0;
	this.l = 0;
	this.W = null == t ? void 0 : t.watched;
	this.Z = null == t ? void 0 : t.unwatched;
	this.name = null == t ? void 0 : t.name;
}
l.prototype.brand = i;
l.prototype.h = function() {
	return !0;
};
l.prototype.S = function(i) {
	var t = this, r = this.t;
	if (r !== i && void 0 === i.e) {
		i.x = r;
		this.t = i;
		if (void 0 !== r) r.e = i;
		else f(function() {
			var i;
			null == (i = t.W) || i.call(t);
		});
	}
};
l.prototype.U = function(i) {
	var t = this;
	if (void 0 !== this.t) {
		var r = i.e, n = i.x;
		if (void 0 !== r) {
			r.x = n;
			i.e = void 0;
		}
		if (void 0 !== n) {
			n.e = r;
			i.x = void 0;
		}
		if (i === this.t) {
			this.t = n;
			if (void 0 === n) f(function() {
				var i;
				null == (i = t.Z) || i.call(t);
			});
		}
	}
};
l.prototype.subscribe = function(i) {
	var t = this;
	return x(function() {
		var r = t.value;
		f(function() {
			return i(r);
		});
	}, { name: "sub" });
};
l.prototype.valueOf = function() {
	return this.value;
};
l.prototype.toString = function() {
	return this.value + "";
};
l.prototype.toJSON = function() {
	return this.value;
};
l.prototype.peek = function() {
	var i = this;
	return f(function() {
		return i.value;
	});
};
Object.defineProperty(l.prototype, "value", {
	get: function() {
		var i = d$1(this);
		if (void 0 !== i) i.i = this.i;
		return this.v;
	},
	set: function(i) {
		if (i !== this.v) {
			if (s > 100) throw new Error("Cycle detected");
			(function(i) {
				if (0 !== v && 0 === s) {
					if (i.l !== u) {
						i.l = u;
						c = {
							S: i,
							v: i.v,
							i: i.i,
							o: c
						};
					}
				}
			})(this);
			this.v = i;
			this.i++;
			a++;
			v++;
			try {
				for (var r = this.t; void 0 !== r; r = r.x) r.t.N();
			} finally {
				t();
			}
		}
	}
});
function y$1(i, t) {
	return new l(i, t);
}
function w$1(i) {
	for (var t = i.s; void 0 !== t; t = t.n) if (t.S.i !== t.i || !t.S.h() || t.S.i !== t.i) return !0;
	return !1;
}
function b$1(i) {
	for (var t = i.s; void 0 !== t; t = t.n) {
		var r = t.S.n;
		if (void 0 !== r) t.r = r;
		t.S.n = t;
		t.i = -1;
		if (void 0 === t.n) {
			i.s = t;
			break;
		}
	}
}
function _(i) {
	var t = i.s, r = void 0;
	while (void 0 !== t) {
		var n = t.p;
		if (-1 === t.i) {
			t.S.U(t);
			if (void 0 !== n) n.n = t.n;
			if (void 0 !== t.n) t.n.p = n;
		} else r = t;
		t.S.n = t.r;
		if (void 0 !== t.r) t.r = void 0;
		t = n;
	}
	i.s = r;
}
function j(i, t) {
	l.call(this, void 0, t);
	this.x = i;
	this.s = void 0;
	this.g = a - 1;
	this.f = 4;
}
j.prototype = new l();
j.prototype.h = function() {
	this.f &= -3;
	if (1 & this.f) return !1;
	if (32 == (36 & this.f)) return !0;
	this.f &= -5;
	if (this.g === a) return !0;
	this.g = a;
	this.f |= 1;
	if (this.i > 0 && !w$1(this)) {
		this.f &= -2;
		return !0;
	}
	var i = o;
	try {
		b$1(this);
		o = this;
		var t = this.x();
		if (16 & this.f || this.v !== t || 0 === this.i) {
			this.v = t;
			this.f &= -17;
			this.i++;
		}
	} catch (i) {
		this.v = i;
		this.f |= 16;
		this.i++;
	}
	o = i;
	_(this);
	this.f &= -2;
	return !0;
};
j.prototype.S = function(i) {
	if (void 0 === this.t) {
		this.f |= 36;
		for (var t = this.s; void 0 !== t; t = t.n) t.S.S(t);
	}
	l.prototype.S.call(this, i);
};
j.prototype.U = function(i) {
	if (void 0 !== this.t) {
		l.prototype.U.call(this, i);
		if (void 0 === this.t) {
			this.f &= -33;
			for (var t = this.s; void 0 !== t; t = t.n) t.S.U(t);
		}
	}
};
j.prototype.N = function() {
	if (!(2 & this.f)) {
		this.f |= 6;
		for (var i = this.t; void 0 !== i; i = i.x) i.t.N();
	}
};
Object.defineProperty(j.prototype, "value", { get: function() {
	if (1 & this.f) throw new Error("Cycle detected");
	var i = d$1(this);
	this.h();
	if (void 0 !== i) i.i = this.i;
	if (16 & this.f) throw this.v;
	return this.v;
} });
function O(i, t) {
	return new j(i, t);
}
function p$1(i) {
	var r = i.j;
	i.j = void 0;
	if ("function" == typeof r) {
		v++;
		var n = o;
		o = void 0;
		try {
			r();
		} catch (t) {
			i.f &= -2;
			i.f |= 8;
			g$1(i);
			throw t;
		} finally {
			o = n;
			t();
		}
	}
}
function g$1(i) {
	for (var t = i.s; void 0 !== t; t = t.n) t.S.U(t);
	i.x = void 0;
	i.s = void 0;
	p$1(i);
}
function S(i) {
	if (o !== this) throw new Error("Out-of-order effect");
	_(this);
	o = i;
	this.f &= -2;
	try {
		if (8 & this.f) g$1(this);
	} finally {
		t();
	}
}
function m$1(i, t) {
	this.x = i;
	this.j = void 0;
	this.s = void 0;
	this.u = void 0;
	this.f = 32;
	this.name = null == t ? void 0 : t.name;
	if (n) n.push(this);
}
m$1.prototype.c = function() {
	var i = this.S();
	try {
		if (8 & this.f) return;
		if (void 0 === this.x) return;
		var t = this.x();
		if ("function" == typeof t) this.j = t;
	} finally {
		i();
	}
};
m$1.prototype.S = function() {
	if (1 & this.f) throw new Error("Cycle detected");
	this.f |= 1;
	this.f &= -9;
	p$1(this);
	b$1(this);
	v++;
	var i = o;
	o = this;
	return S.bind(this, i);
};
m$1.prototype.N = function() {
	if (!(2 & this.f)) {
		this.f |= 2;
		this.u = h$1;
		h$1 = this;
	}
};
m$1.prototype.d = function() {
	this.f |= 8;
	if (!(1 & this.f)) g$1(this);
};
m$1.prototype.dispose = function() {
	this.d();
};
function x(i, t) {
	var r = new m$1(i, t);
	try {
		r.c();
	} catch (i) {
		r.d();
		throw i;
	}
	var n = r.d.bind(r);
	n[Symbol.dispose] = n;
	return n;
}
// node_modules/@preact/signals/dist/signals.module.js
var h;
var p;
var m = "undefined" != typeof window && !!window.__PREACT_SIGNALS_DEVTOOLS__;
var g = [];
x(function() {
	h = this.N;
})();
function b(i, n) {
	n$1[i] = n.bind(null, n$1[i] || function() {});
}
function y(i) {
	if (p) {
		var n = p;
		p = void 0;
		n();
	}
	p = i && i.S();
}
function w(i) {
	var n = this, r = i.data, t = useSignal(r);
	t.name = "ReactiveDom";
	t.value = r;
	var e = w$2(function() {
		var i = n, r = n.__v;
		while (r = r.__) if (r.__c) {
			r.__c.__$f |= 4;
			break;
		}
		var o = O(function() {
			var i = t.value.value;
			return 0 === i ? 0 : !0 === i ? "" : i || "";
		}), e = O(function() {
			return !Array.isArray(o.value) && !r$2(o.value);
		}), u = x(function() {
			this.N = M;
			if (e.value) {
				var n = o.value;
				if (i.__v && i.__v.__e && 3 === i.__v.__e.nodeType) i.__v.__e.data = n;
			}
		}), c = n.__$u.d;
		n.__$u.d = function() {
			u();
			c.call(this);
		};
		return [e, o];
	}, []), u = e[0], c = e[1];
	return u.value ? c.peek() : c.value;
}
w.displayName = "ReactiveTextNode";
Object.defineProperties(l.prototype, {
	constructor: {
		configurable: !0,
		value: k$2($, null).constructor
	},
	type: {
		configurable: !0,
		value: w
	},
	props: {
		configurable: !0,
		get: function() {
			var i = this;
			return { data: { get value() {
				return i.value;
			} } };
		}
	},
	__b: {
		configurable: !0,
		value: 1
	}
});
b("__b", function(i, n) {
	y();
	if ("string" == typeof n.type) {
		var r, t = n.props;
		for (var f in t) if ("children" !== f) {
			var o = t[f];
			if (o instanceof l) {
				if (!r) n.__np = r = {};
				r[f] = o;
				t[f] = o.peek();
			}
		}
	}
	i(n);
});
b("__r", function(i, r) {
	i(r);
	if (r.type !== $) {
		y();
		var t, f = r.__c;
		if (f) {
			f.__$f &= -2;
			if (void 0 === (t = f.__$u)) f.__$u = t = function(i, n) {
				var r;
				x(function() {
					r = this;
				}, { name: n });
				r.c = i;
				return r;
			}(function(i) {
				return function() {
					var n;
					if (m) null == (n = this.y) || n.call(this);
					i.__$f |= 1;
					i.setState({});
				};
			}(f), "function" == typeof r.type ? r.type.displayName || r.type.name : "");
		}
		y(t);
	}
});
b("__e", function(i, n, r, t) {
	y();
	i(n, r, t);
});
b("diffed", function(i, n) {
	y();
	var r;
	if ("string" == typeof n.type && (r = n.__e)) {
		var t = n.__np, f = n.props, o = r.U;
		if (o) for (var e in o) {
			var u = o[e];
			if (!(void 0 === u || t && e in t)) {
				u.d();
				o[e] = void 0;
			}
		}
		if (t) {
			if (!o) {
				o = {};
				r.U = o;
			}
			for (var a in t) {
				var c = o[a], v = t[a];
				if (void 0 === c) {
					c = k(r, a, v, f);
					o[a] = c;
				} else c.o(v, f);
			}
		}
	}
	i(n);
});
function k(i, n, r, t) {
	var f = n in i && void 0 === i.ownerSVGElement, o = y$1(r);
	return {
		o: function(i, n) {
			o.value = i;
			t = n;
		},
		d: x(function() {
			this.N = M;
			var r = o.value.value;
			if (t[n] !== r) {
				t[n] = r;
				if (f) i[n] = r;
				else if (null != r && (!1 !== r || "-" === n[4])) i.setAttribute(n, r);
				else i.removeAttribute(n);
			}
		})
	};
}
b("unmount", function(i, n) {
	if ("string" == typeof n.type) {
		var r = n.__e;
		if (r) {
			var t = r.U;
			if (t) {
				r.U = void 0;
				for (var f in t) {
					var o = t[f];
					if (o) o.d();
				}
			}
		}
		var e = n.__np;
		if (e) {
			var u = n.props;
			for (var a in e) u[a] = e[a];
		}
		n.__np = void 0;
	} else {
		var c = n.__c;
		if (c) {
			c.__$f |= 8;
			var v = c.__$u;
			if (v) {
				c.__$u = void 0;
				v.d();
			}
		}
	}
	i(n);
});
b("__h", function(i, n, r, t) {
	if (t < 3) n.__$f |= 2;
	i(n, r, t);
});
x$1.prototype.shouldComponentUpdate = function(i, n) {
	if (this.__R) return !0;
	var r = this.__$u, t = r && void 0 !== r.s;
	for (var f in n) return !0;
	if (this.__f || "boolean" == typeof this.u && !0 === this.u) {
		var o = 2 & this.__$f;
		if (!(t || o || 4 & this.__$f)) return !0;
		if (1 & this.__$f) return !0;
	} else {
		if (!(t || 4 & this.__$f)) return !0;
		if (3 & this.__$f) return !0;
	}
	for (var e in i) if ("__source" !== e && i[e] !== this.props[e]) return !0;
	for (var u in this.props) if (!(u in i)) return !0;
	return !1;
};
function useSignal(i, n) {
	return w$2(function() {
		return y$1(i, n);
	}, []);
}
var A = function(i) {
	queueMicrotask(function() {
		queueMicrotask(i);
	});
};
function F() {
	r(function() {
		var i;
		while (i = g.shift()) h.call(i);
	});
}
function M() {
	if (1 === g.push(this)) (n$1.requestAnimationFrame || A)(F);
}
// src/theme.ts
var stored = () => {
	try {
		const value = localStorage.getItem("embstore-theme");
		return value === "light" || value === "dark" ? value : "system";
	} catch {
		return "system";
	}
};
var theme = y$1("system");
var system = matchMedia("(prefers-color-scheme: dark)");
/** Whether the page is dark now: pictures drawn on a canvas read it. */
var dark = y$1(system.matches);
function setTheme(value) {
	theme.value = value;
	dark.value = value === "dark" || value === "system" && system.matches;
	document.documentElement.dataset.theme = value;
	try {
		localStorage.setItem("embstore-theme", value);
	} catch {}
}
function startTheme() {
	setTheme(stored());
	system.addEventListener("change", () => setTheme(theme.value));
}
// src/views/compare.tsx
function CompareView() {
	return /* @__PURE__ */ a$1(Empty, {
		title: "Compare",
		children: "This view is not built yet."
	});
}
var compare = {
	name: "compare",
	title: "Compare",
	needs: ["stores"],
	component: CompareView
};
// src/views/layers.tsx
function LayersView() {
	return /* @__PURE__ */ a$1(Empty, {
		title: "Layers",
		children: "This view is not built yet."
	});
}
var layers = {
	name: "layers",
	title: "Layers",
	needs: ["geometry"],
	component: LayersView
};
// src/views/map.tsx
function MapView() {
	return /* @__PURE__ */ a$1(Empty, {
		title: "Map",
		children: "This view is not built yet."
	});
}
var map = {
	name: "map",
	title: "Map",
	needs: ["map"],
	component: MapView
};
// src/views/neighbors.tsx
function NeighboursView() {
	return /* @__PURE__ */ a$1(Empty, {
		title: "Neighbours",
		children: "This view is not built yet."
	});
}
var neighbors = {
	name: "neighbors",
	title: "Neighbours",
	needs: ["neighbors"],
	component: NeighboursView
};
// src/views/sentence.tsx
function SentenceView() {
	return /* @__PURE__ */ a$1(Empty, {
		title: "Sentence",
		children: "This view is not built yet."
	});
}
var sentence = {
	name: "sentence",
	title: "Sentence",
	needs: ["sentence"],
	component: SentenceView
};
// src/parts/table.tsx
/** A table; the headers of columns that can be sorted write `sort` and `desc` into the state. */
function Table({ label, columns, rows, id }) {
	const { values, go } = useApp();
	const descending = values.desc === "1";
	return /* @__PURE__ */ a$1("div", {
		class: "scroll",
		tabIndex: 0,
		role: "region",
		"aria-label": label,
		children: /* @__PURE__ */ a$1("table", { children: [/* @__PURE__ */ a$1("thead", { children: /* @__PURE__ */ a$1("tr", { children: columns.map((column) => {
			const sorted = column.sort !== void 0 && values.sort === column.sort;
			const order = sorted ? descending ? "descending" : "ascending" : void 0;
			return /* @__PURE__ */ a$1("th", {
				scope: "col",
				class: column.class,
				"aria-sort": order,
				children: column.sort === void 0 ? column.title : /* @__PURE__ */ a$1("button", {
					type: "button",
					class: "sort",
					onClick: () => go({
						sort: sorted && descending ? null : column.sort,
						desc: sorted && !descending ? "1" : null,
						offset: null
					}),
					children: [column.title, /* @__PURE__ */ a$1("span", {
						"aria-hidden": "true",
						children: sorted ? descending ? " ↓" : " ↑" : ""
					})]
				})
			}, column.name);
		}) }) }), /* @__PURE__ */ a$1("tbody", { children: rows.map((row) => /* @__PURE__ */ a$1("tr", { children: columns.map((column) => /* @__PURE__ */ a$1("td", {
			class: column.class,
			children: column.cell(row)
		}, column.name)) }, id(row))) })] })
	});
}
/** Moves through the pages of a long table by `offset` in the state. */
function Pager({ total, size }) {
	const { values, go } = useApp();
	const offset = Math.min(Number(values.offset) || 0, Math.max(0, total - 1));
	const last = Math.floor(Math.max(0, total - 1) / size) * size;
	const to = (value) => go({ offset: value || null });
	const number = (value) => value.toLocaleString("en");
	return /* @__PURE__ */ a$1("span", {
		class: "pager",
		role: "group",
		"aria-label": "Pages",
		children: [
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset === 0,
				onClick: () => to(0),
				"aria-label": "First page",
				children: "«"
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset === 0,
				onClick: () => to(Math.max(0, offset - size)),
				"aria-label": "Previous page",
				children: "‹"
			}),
			/* @__PURE__ */ a$1("span", {
				class: "numbers",
				children: total ? `${number(offset + 1)}–${number(Math.min(total, offset + size))} of ${number(total)}` : "none"
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset >= last,
				onClick: () => to(offset + size),
				"aria-label": "Next page",
				children: "›"
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				disabled: offset >= last,
				onClick: () => to(last),
				"aria-label": "Last page",
				children: "»"
			})
		]
	});
}
// src/parts/concordance.tsx
/** Occurrences as keywords in context. Each leads to its sentence, its neighbours and its place on the map. */
function Concordance({ rows, columns = [], extra = [], sortable = false, label = "Occurrences" }) {
	const sort = (name) => sortable ? name : void 0;
	return /* @__PURE__ */ a$1(Table, {
		label,
		columns: [
			...extra,
			{
				name: "left",
				title: "Left",
				sort: sort("left"),
				class: "left",
				cell: (row) => /* @__PURE__ */ a$1("bdi", {
					class: "context",
					children: row.left
				})
			},
			{
				name: "word",
				title: "Word",
				sort: sort("word"),
				class: "word",
				cell: (row) => /* @__PURE__ */ a$1(Link, {
					to: {
						view: "sentence",
						row: row.row,
						sentence: row.sentence
					},
					title: "Open the sentence",
					children: /* @__PURE__ */ a$1("bdi", { children: row.word })
				})
			},
			{
				name: "right",
				title: "Right",
				sort: sort("right"),
				class: "right",
				cell: (row) => /* @__PURE__ */ a$1("bdi", {
					class: "context",
					children: row.right
				})
			},
			...columns.map((column) => ({
				name: column.name,
				title: column.name,
				sort: sort(column.name),
				class: "value",
				cell: (row) => /* @__PURE__ */ a$1("bdi", { children: row.labels[column.name] ?? "" })
			})),
			{
				name: "links",
				title: /* @__PURE__ */ a$1("span", {
					class: "sr",
					children: "Links"
				}),
				class: "links",
				cell: (row) => /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1(Link, {
					to: {
						view: "neighbors",
						row: row.row,
						word: null,
						text: null,
						offset: null
					},
					label: `Neighbours of row ${row.row}`,
					children: "similar"
				}), /* @__PURE__ */ a$1(Link, {
					to: {
						view: "map",
						row: row.row,
						word: row.word,
						offset: null
					},
					label: `Row ${row.row} on the map`,
					children: "map"
				})] })
			}
		],
		rows,
		id: (row) => row.row
	});
}
// src/pictures.ts
/** Saves pictures as files. */
function save(blob, name) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(blob);
	link.download = name;
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 1e4);
}
function saveCanvas(canvas, name) {
	canvas.toBlob((blob) => blob && save(blob, name), "image/png");
}
var DRAWN = [
	"fill",
	"fill-opacity",
	"stroke",
	"stroke-width",
	"stroke-opacity",
	"stroke-dasharray",
	"opacity",
	"font-family",
	"font-size",
	"font-weight",
	"text-anchor",
	"color",
	"visibility"
];
/** The text of a picture with the page's styles written into it, so that it looks the same elsewhere. */
function standalone(svg) {
	const copy = svg.cloneNode(true);
	const copies = copy.querySelectorAll("*");
	svg.querySelectorAll("*").forEach((element, index) => {
		const style = getComputedStyle(element);
		for (const name of DRAWN) copies[index].setAttribute(name, style.getPropertyValue(name));
	});
	const { width, height } = svg.getBoundingClientRect();
	copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
	copy.setAttribute("width", String(width));
	copy.setAttribute("height", String(height));
	const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
	ground.setAttribute("width", "100%");
	ground.setAttribute("height", "100%");
	ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
	copy.prepend(ground);
	return new XMLSerializer().serializeToString(copy);
}
/** Saves an <svg> as it is, or as a PNG of twice its size, by the ending of the name. */
async function saveSvg(svg, name) {
	const blob = new Blob([standalone(svg)], { type: "image/svg+xml" });
	if (name.endsWith(".svg")) return save(blob, name);
	const { width, height } = svg.getBoundingClientRect();
	const image = new Image();
	image.src = URL.createObjectURL(blob);
	await image.decode();
	const canvas = document.createElement("canvas");
	canvas.width = 2 * width;
	canvas.height = 2 * height;
	canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
	URL.revokeObjectURL(image.src);
	saveCanvas(canvas, name);
}
// src/parts/export_menu.tsx
/** Saves a view's table and its picture. */
function ExportMenu({ name, params, picture }) {
	const { source } = useApp();
	const save = (format) => {
		const found = picture?.();
		if (found instanceof SVGSVGElement) saveSvg(found, `${name}.${format}`);
		else if (found) saveCanvas(found, `${name}.png`);
	};
	return /* @__PURE__ */ a$1("span", {
		class: "export",
		role: "group",
		"aria-label": "Export",
		children: [
			/* @__PURE__ */ a$1("span", {
				class: "label",
				children: "Export"
			}),
			source.exportUrl && /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("a", {
				href: source.exportUrl(name, params, "csv"),
				download: `${name}.csv`,
				children: "CSV"
			}), /* @__PURE__ */ a$1("a", {
				href: source.exportUrl(name, params, "parquet"),
				download: `${name}.parquet`,
				children: "Parquet"
			})] }),
			picture && /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "link",
				onClick: () => save("svg"),
				children: "SVG"
			}), /* @__PURE__ */ a$1("button", {
				type: "button",
				class: "link",
				onClick: () => save("png"),
				children: "PNG"
			})] })
		]
	});
}
// src/parts/filters.tsx
var quoted = (value) => /^[\w.+-]+$/.test(value) ? value : `"${value.replace(/(["\\])/g, "\\$1")}"`;
/** The text of `--where`, with a menu that writes a condition on a label. */
function Filters() {
	const { store, values, go } = useApp();
	const [text, setText] = d$2(values.where ?? "");
	A$1(() => setText(values.where ?? ""), [values.where]);
	const apply = (where) => go({
		where,
		offset: null
	});
	return /* @__PURE__ */ a$1("form", {
		class: "filters",
		onSubmit: (event) => {
			event.preventDefault();
			apply(text.trim());
		},
		children: [
			/* @__PURE__ */ a$1("label", { children: [/* @__PURE__ */ a$1("span", { children: "Where" }), /* @__PURE__ */ a$1("input", {
				type: "text",
				dir: "auto",
				spellcheck: false,
				autocomplete: "off",
				placeholder: store.labels.length ? `${store.labels[0].name} == …` : "a condition",
				value: text,
				onInput: (event) => setText(event.currentTarget.value),
				onKeyDown: (event) => event.key === "Escape" && setText(values.where ?? "")
			})] }),
			store.labels.length > 0 && /* @__PURE__ */ a$1("select", {
				"aria-label": "Add a condition on a label",
				value: "",
				onChange: (event) => {
					const condition = event.currentTarget.value;
					event.currentTarget.value = "";
					apply([values.where, condition].filter(Boolean).join(" & "));
				},
				children: [/* @__PURE__ */ a$1("option", {
					value: "",
					children: "Label…"
				}), store.labels.map((layer) => /* @__PURE__ */ a$1("optgroup", {
					label: layer.name,
					children: layer.values.slice(0, 200).map((value) => /* @__PURE__ */ a$1("option", {
						value: `${layer.name} == ${quoted(value)}`,
						children: value
					}, value))
				}, layer.name))]
			}),
			values.where && /* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				onClick: () => apply(""),
				children: "Clear"
			})
		]
	});
}
// src/parts/layer_slider.tsx
/** Chooses a layer of the store: the arrow keys move it too. */
function LayerSlider({ label = "Layer" }) {
	const { store, layer, go } = useApp();
	const last = store.layers.length - 1;
	return /* @__PURE__ */ a$1("label", {
		class: "slider",
		children: [
			/* @__PURE__ */ a$1("span", { children: label }),
			/* @__PURE__ */ a$1("input", {
				type: "range",
				min: 0,
				max: last,
				step: 1,
				value: store.layers.indexOf(layer),
				"aria-valuetext": `layer ${layer}`,
				onInput: (event) => go({ layer: store.layers[Number(event.currentTarget.value)] }, { replace: true })
			}),
			/* @__PURE__ */ a$1("output", { children: layer })
		]
	});
}
// src/parts/python_call.tsx
/** The call of the public API that gives what a view shows. */
function PythonCall({ code }) {
	const [copied, setCopied] = d$2(false);
	const copy = async () => {
		await navigator.clipboard.writeText(code);
		setCopied(true);
		setTimeout(() => setCopied(false), 2e3);
	};
	return /* @__PURE__ */ a$1("figure", {
		class: "python",
		children: [
			/* @__PURE__ */ a$1("figcaption", { children: "Python" }),
			/* @__PURE__ */ a$1("pre", {
				tabIndex: 0,
				"aria-label": "The Python call of this view",
				children: /* @__PURE__ */ a$1("code", { children: code })
			}),
			/* @__PURE__ */ a$1("button", {
				type: "button",
				class: "quiet",
				onClick: copy,
				"aria-live": "polite",
				children: copied ? "Copied" : "Copy"
			})
		]
	});
}
// src/use_query.ts
var ANSWERS = 40;
var answers = /* @__PURE__ */ new WeakMap();
function remembered(source) {
	if (!answers.has(source)) answers.set(source, /* @__PURE__ */ new Map());
	return answers.get(source);
}
/** The answer of a query, asked again when its parameters change; `null` asks nothing. */
function useQuery(name, params, options = {}) {
	const { source } = useApp();
	const [tries, setTries] = d$2(0);
	const key = params && `${name} ${JSON.stringify(params)}`;
	const [state, setState] = d$2({
		status: "idle",
		key: null
	});
	A$1(() => {
		if (!key || !params) return setState({
			status: "idle",
			key
		});
		const known = remembered(source);
		if (known.has(key)) return setState({
			status: "done",
			value: known.get(key),
			key
		});
		const abort = new AbortController();
		setState((before) => ({
			status: "loading",
			value: before.value,
			key
		}));
		const progress = options.progress ? (done, total) => setState((before) => before.key === key ? {
			...before,
			progress: {
				done,
				total
			}
		} : before) : void 0;
		source.query(name, params, {
			signal: abort.signal,
			progress
		}).then((value) => {
			known.set(key, value);
			if (known.size > ANSWERS) known.delete(known.keys().next().value);
			if (!abort.signal.aborted) setState({
				status: "done",
				value,
				key
			});
		}, (error) => {
			if (!abort.signal.aborted) setState({
				status: "error",
				error: String(error.message ?? error),
				key
			});
		});
		return () => abort.abort();
	}, [
		source,
		key,
		tries
	]);
	const retry = () => setTries(tries + 1);
	if (state.key !== key) return {
		status: key ? "loading" : "idle",
		value: key ? state.value : void 0,
		retry
	};
	return {
		...state,
		retry
	};
}
// src/views/word.tsx
var SIZE = 50;
function WordView() {
	const { index, values } = useApp();
	const params = {
		store: index,
		word: values.word,
		where: values.where,
		sort: values.sort,
		descending: values.desc ? true : void 0
	};
	const occurrences = useQuery("occurrences", {
		...params,
		offset: Number(values.offset) || 0,
		limit: SIZE
	});
	return /* @__PURE__ */ a$1($, { children: [/* @__PURE__ */ a$1("div", {
		class: "toolbar",
		children: [/* @__PURE__ */ a$1(Filters, {}), /* @__PURE__ */ a$1(LayerSlider, {})]
	}), /* @__PURE__ */ a$1(Answer, {
		of: occurrences,
		what: "occurrences",
		children: (answer) => /* @__PURE__ */ a$1($, { children: [
			answer.total === 0 && /* @__PURE__ */ a$1(Empty, {
				title: "No occurrence",
				children: "Change the word or the filter."
			}),
			/* @__PURE__ */ a$1(Concordance, {
				rows: answer.rows,
				columns: answer.columns,
				sortable: true
			}),
			/* @__PURE__ */ a$1("div", {
				class: "toolbar",
				children: [/* @__PURE__ */ a$1(Pager, {
					total: answer.total,
					size: SIZE
				}), /* @__PURE__ */ a$1(ExportMenu, {
					name: "occurrences",
					params
				})]
			}),
			/* @__PURE__ */ a$1(PythonCall, { code: answer.python })
		] })
	})] });
}
// src/views/index.ts
/** The views, in the order of the navigation: a new view is one file and one name here. */
var VIEWS = [
	{
		name: "word",
		title: "Word",
		needs: ["occurrences"],
		component: WordView
	},
	map,
	neighbors,
	layers,
	sentence,
	compare
];
// src/shell.tsx
/** Shows the explorer in an element. */
function mount(element, source, state) {
	Q(/* @__PURE__ */ a$1(Page, {
		source,
		state
	}), element);
}
function Page({ source, state }) {
	const [stores, setStores] = d$2();
	const [error, setError] = d$2();
	const [tries, setTries] = d$2(0);
	A$1(() => {
		setError(void 0);
		source.query("stores", {}).then(setStores, (problem) => setError(problem.message));
	}, [source, tries]);
	if (error) return /* @__PURE__ */ a$1(ErrorState, {
		error,
		retry: () => setTries(tries + 1)
	});
	if (!stores) return /* @__PURE__ */ a$1(Loading, { what: "the stores" });
	return /* @__PURE__ */ a$1(AppContext.Provider, {
		value: {
			source,
			stores,
			state
		},
		children: /* @__PURE__ */ a$1(Shell, {})
	});
}
function Shell() {
	const { source, values, store } = useApp();
	const views = VIEWS.filter((view) => view.needs.every((name) => source.has(name)));
	const view = views.find((one) => one.name === values.view) ?? views[0];
	A$1(() => {
		document.title = [
			values.word,
			view.title,
			store.name,
			"embstore"
		].filter(Boolean).join(" · ");
	}, [
		values.word,
		view,
		store
	]);
	return /* @__PURE__ */ a$1($, { children: [
		/* @__PURE__ */ a$1("a", {
			class: "skip",
			href: "#main",
			children: "Skip to the view"
		}),
		/* @__PURE__ */ a$1("header", {
			class: "bar",
			children: [
				/* @__PURE__ */ a$1("span", {
					class: "brand",
					children: "embstore"
				}),
				/* @__PURE__ */ a$1("nav", {
					"aria-label": "Views",
					children: views.map((one) => /* @__PURE__ */ a$1(Link, {
						to: {
							view: one.name,
							offset: null
						},
						current: one === view,
						children: one.title
					}, one.name))
				}),
				/* @__PURE__ */ a$1(StorePicker, {}),
				/* @__PURE__ */ a$1(ThemeSwitch, {})
			]
		}),
		/* @__PURE__ */ a$1("main", {
			id: "main",
			tabIndex: -1,
			class: `view view-${view.name}`,
			children: [/* @__PURE__ */ a$1("h1", {
				class: "sr",
				children: view.title
			}), /* @__PURE__ */ a$1(Content, { view }, view.name)]
		})
	] });
}
function Content({ view }) {
	return /* @__PURE__ */ a$1(view.component, {});
}
/** Chooses the store; with one store, says which. */
function StorePicker() {
	const { stores, store, index, go } = useApp();
	const facts = `${store.model ?? "no model"} · ${store.rows.toLocaleString("en")} rows · ${store.layers.length} layers`;
	return /* @__PURE__ */ a$1("span", {
		class: "store",
		title: `${store.address}\n${facts}`,
		children: [
			stores.length === 1 ? /* @__PURE__ */ a$1("b", { children: store.name }) : /* @__PURE__ */ a$1("select", {
				"aria-label": "Store",
				value: String(index),
				onChange: (event) => go({
					store: event.currentTarget.value,
					row: null,
					sentence: null,
					offset: null
				}),
				children: stores.map((one, position) => /* @__PURE__ */ a$1("option", {
					value: String(position),
					children: one.name
				}, position))
			}),
			/* @__PURE__ */ a$1("span", {
				class: "facts",
				children: facts
			}),
			!store.finished && /* @__PURE__ */ a$1("span", {
				class: "tag warn",
				children: "unfinished"
			})
		]
	});
}
function ThemeSwitch() {
	const other = dark.value ? "light" : "dark";
	return /* @__PURE__ */ a$1("button", {
		type: "button",
		class: "quiet icon",
		"aria-label": `Switch to ${other} colours`,
		title: `Switch to ${other} colours`,
		onClick: () => setTheme(other),
		children: /* @__PURE__ */ a$1("svg", {
			viewBox: "0 0 16 16",
			width: "16",
			height: "16",
			"aria-hidden": "true",
			children: [/* @__PURE__ */ a$1("circle", {
				cx: "8",
				cy: "8",
				r: "6.2",
				fill: "none",
				stroke: "currentColor",
				"stroke-width": "1.5"
			}), /* @__PURE__ */ a$1("path", {
				d: "M8 1.8a6.2 6.2 0 0 1 0 12.4z",
				fill: "currentColor"
			})]
		})
	});
}
// src/safetensors.ts
var KINDS = {
	F64: Float64Array,
	F32: Float32Array,
	I32: Int32Array,
	U32: Uint32Array,
	I16: Int16Array,
	U16: Uint16Array,
	I8: Int8Array,
	U8: Uint8Array,
	BOOL: Uint8Array,
	I64: BigInt64Array
};
/** The arrays of a buffer, and the JSON that its header carries under `__metadata__.json`. */
function readSafetensors(buffer) {
	const length = Number(new DataView(buffer).getBigUint64(0, true));
	const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
	const arrays = {};
	for (const [name, { dtype, shape, data_offsets: [start, stop] }] of Object.entries(entries)) {
		const kind = KINDS[dtype];
		if (!kind) throw new Error(`an array of type ${dtype} cannot be shown`);
		arrays[name] = {
			values: new kind(buffer.slice(8 + length + start, 8 + length + stop)),
			shape
		};
	}
	return {
		meta: JSON.parse(metadata?.json ?? "{}"),
		arrays
	};
}
// src/server_source.ts
/** The queries of the server that serves this page. */
var ServerSource = class {
	token;
	constructor(token) {
		this.token = token;
	}
	has() {
		return true;
	}
	exportUrl(name, params, format) {
		return this.url(`export/${name}.${format}`, params);
	}
	async query(name, params, options = {}) {
		const headers = options.progress ? { Accept: "application/x-ndjson" } : void 0;
		let response;
		try {
			response = await fetch(this.url(name, params), {
				signal: options.signal,
				headers,
				cache: "no-store"
			});
		} catch (error) {
			if (options.signal?.aborted) throw error;
			throw new Error("the server does not answer: is `embstore explore` still running?");
		}
		const type = response.headers.get("content-type") ?? "";
		if (!response.ok) {
			const body = type.startsWith("application/json") ? await response.json() : null;
			throw new Error(body?.error ?? `the server answers ${response.status} to ${name}`);
		}
		if (type.startsWith("application/x-ndjson")) return await readLines(response, options);
		if (type.startsWith("application/json")) return await response.json();
		return readSafetensors(await response.arrayBuffer());
	}
	url(name, params) {
		const query = new URLSearchParams();
		for (const [key, value] of Object.entries(params)) if (value !== void 0) query.set(key, String(value));
		if (this.token) query.set("token", this.token);
		return `api/${name}?${query}`;
	}
};
/** The last of newline-separated JSON values; those before it report progress. */
async function readLines(response, options) {
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	let answer;
	const take = (line) => {
		if (!line) return;
		const value = JSON.parse(line);
		if (value.error) throw new Error(value.error);
		if (value.progress) options.progress?.(value.progress[0], value.progress[1]);
		else answer = value.result ?? value;
	};
	for (;;) {
		const { done, value } = await reader.read();
		const lines = (rest + (value ?? "")).split("\n");
		rest = done ? "" : lines.pop();
		lines.forEach(take);
		if (done) break;
	}
	if (answer === void 0) throw new Error("the answer ends before its result");
	return answer;
}
// src/state.ts
function changed(values, changes) {
	const next = { ...values };
	for (const [name, value] of Object.entries(changes)) if (value === void 0 || value === null || value === "") delete next[name];
	else next[name] = String(value);
	return next;
}
/** The state in the query of the page's address. */
function urlState() {
	const read = () => Object.fromEntries(new URLSearchParams(location.search));
	const values = y$1(read());
	addEventListener("popstate", () => values.value = read());
	const href = (changes) => `?${new URLSearchParams(changed(values.peek(), changes))}`;
	return {
		values,
		href,
		go(changes, { replace = false } = {}) {
			const address = href(changes);
			if (replace || address === location.search) history.replaceState(null, "", address);
			else history.pushState(null, "", address);
			values.value = read();
		}
	};
}
// src/main.tsx
startTheme();
var token = new URLSearchParams(location.search).get("token");
mount(document.getElementById("app"), new ServerSource(token), urlState());
